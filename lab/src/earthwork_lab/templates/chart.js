// Charts: lines, steps and bars with intervals, a cursor that reads the values, and a legend that switches series.
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, parent = null, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.0001 || size >= 100000)) return value.toExponential(2);
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

function linearTicks(low, high, count = 5) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough) || power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let k = Math.floor(Math.log10(low) - 1e-9); k <= Math.ceil(Math.log10(high) + 1e-9); k++) {
    if (10 ** k >= low * 0.999 && 10 ** k <= high * 1.001) ticks.push(10 ** k);
  }
  return ticks.length > 1 ? ticks : [low, high];
}

function scale(low, high, from, to, logarithmic) {
  const f = logarithmic ? Math.log : x => x;
  const a = f(low), b = f(high);
  return value => from + (f(value) - a) / (b - a || 1) * (to - from);
}

function drawChart(figure, chart) {
  const left = 66, right = 14, top = 12, bottom = chart.kind === "bar" ? 78 : 46;
  let width = 560, height = 330;
  const box = figure.querySelector(".plot"), tip = figure.querySelector(".tip"), legend = figure.querySelector(".legend");
  const shown = chart.series.map(() => true);
  const bars = chart.kind === "bar";
  const places = s => bars ? chart.x.map((_, i) => i) : (s.x && s.x.length ? s.x : chart.x);
  const colour = i => chart.series[i].dashed ? "var(--soft)" : `var(--c${(chart.series[i].colour ?? i) % 20})`;

  function range() {
    let xs = [], ys = [];
    chart.series.forEach((s, i) => {
      if (!shown[i]) return;
      const x = places(s);
      s.y.forEach((y, k) => { if (y !== null && (!chart.y_log || y > 0)) { xs.push(x[k]); ys.push(y); } });
    });
    if (!ys.length) { xs = [0, 1]; ys = [chart.y_log ? 0.1 : 0, 1]; }
    let [y0, y1] = chart.y_range || [Math.min(...ys), Math.max(...ys)];
    if (!chart.y_range) {
      if (chart.y_log) { y0 = 10 ** Math.floor(Math.log10(y0) - 0.01); y1 = 10 ** Math.ceil(Math.log10(y1)); }
      else {
        const margin = 0.06 * (y1 - y0 || Math.abs(y1) || 1);
        y0 = y0 >= 0 && y0 - margin < 0 ? 0 : y0 - margin; y1 += margin;
      }
    }
    if (bars) return [-0.5, chart.x.length - 0.5, y0, y1];
    return [Math.min(...xs), Math.max(...xs), y0, y1];
  }

  function render() {
    // Drawn at the size it is shown at, so that letters are as large on a phone as on a desk.
    width = Math.round(Math.min(760, Math.max(280, box.clientWidth || 560)));
    height = Math.round(Math.min(380, Math.max(250, 0.6 * width)));
    const [x0, x1, y0, y1] = range();
    const X = scale(x0, x1, left, width - right, chart.x_log), Y = scale(y0, y1, height - bottom, top, chart.y_log);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.alt });
    const clip = `clip-${chart.key}`;
    make("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom },
      make("clipPath", { id: clip }, make("defs", {}, svg)));
    const ticks = chart.y_log ? logTicks(y0, y1) : linearTicks(y0, y1);
    for (const t of ticks) {
      make("line", { class: "grid", x1: left, x2: width - right, y1: Y(t), y2: Y(t) }, svg);
      make("text", { x: left - 6, y: Y(t) + 4, "text-anchor": "end", "font-size": 12 }, svg, short(t));
    }
    if (bars) chart.x.forEach((name, i) => {
      const narrow = (width - left - right) / chart.x.length < 90;
      const words = String(name).split(narrow ? /,? / : /, | (?=and)/);
      words.forEach((word, row) => make("text", { x: X(i), y: height - bottom + 15 + 12 * row, "text-anchor": "middle", "font-size": narrow ? 9.5 : 10.5 }, svg, word));
    });
    else for (const t of chart.x_log ? logTicks(x0, x1) : linearTicks(x0, x1)) {
      make("line", { class: "grid", x1: X(t), x2: X(t), y1: top, y2: height - bottom }, svg);
      make("text", { x: X(t), y: height - bottom + 16, "text-anchor": "middle", "font-size": 12 }, svg, short(t));
    }
    make("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle", "font-size": 12.5 }, svg, chart.x_label);
    make("text", { transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle", "font-size": 12.5 }, svg, chart.y_label);
    const plot = make("g", { "clip-path": `url(#${clip})` }, svg);
    chart.series.forEach((s, i) => { if (shown[i]) (bars ? drawBars : drawLine)(plot, s, i, X, Y, y0); });
    const cursor = make("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" }, svg);
    svg.addEventListener("pointermove", event => {
      const place = svg.getBoundingClientRect();
      const px = (event.clientX - place.left) / place.width * width;
      read(px, X, cursor);
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); tip.textContent = ""; });
    box.replaceChildren(svg);
  }

  function drawLine(plot, s, i, X, Y) {
    const x = places(s), at = y => chart.y_log && y <= 0 ? null : y;
    let path = "", band = [], pen = false;
    const flush = () => {
      if (band.length > 1) {
        const up = band.map(([a, , c]) => `${X(a)},${Y(c)}`), down = band.slice().reverse().map(([a, b]) => `${X(a)},${Y(b)}`);
        make("polygon", { points: [...up, ...down].join(" "), fill: colour(i), opacity: 0.13 }, plot);
      }
      band = [];
    };
    s.y.forEach((value, k) => {
      const y = value === null ? null : at(value);
      if (y === null) { pen = false; flush(); return; }
      const a = X(x[k]), b = Y(y);
      if (chart.kind === "step") {
        const half = (X(x[1]) - X(x[0])) / 2;
        path += `${pen ? "L" : "M"}${a - half},${b}L${a + half},${b}`;
      } else path += `${pen ? "L" : "M"}${a},${b}`;
      pen = true;
      if (s.low && s.low[k] !== null && s.high[k] !== null) band.push([x[k], chart.y_log ? Math.max(s.low[k], 1e-12) : s.low[k], s.high[k]]);
      if (chart.kind === "line" && s.y.length <= 16) make("circle", { cx: a, cy: b, r: 2.6, fill: colour(i) }, plot);
    });
    flush();
    make("path", { d: path, fill: "none", stroke: colour(i), "stroke-width": 1.8, "stroke-dasharray": s.dashed ? "6 4" : "none" }, plot);
  }

  function drawBars(plot, s, i, X, Y, y0) {
    const visible = chart.series.map((_, k) => k).filter(k => shown[k]);
    const wide = 0.8 / visible.length, place = visible.indexOf(i);
    s.y.forEach((y, k) => {
      if (y === null || y === undefined) return;
      const a = X(k - 0.4 + place * wide), b = X(k - 0.4 + (place + 1) * wide);
      make("rect", { x: a, y: Y(y), width: b - a - 1, height: Math.max(0, Y(y0) - Y(y)), fill: colour(i) }, plot);
    });
  }

  function read(px, X, cursor) {
    let best = null;
    chart.series.forEach((s, i) => {
      if (!shown[i]) return;
      places(s).forEach(x => { const d = Math.abs(X(x) - px); if (best === null || d < best[0]) best = [d, x]; });
    });
    if (best === null) return;
    const where = best[1];
    cursor.setAttribute("x1", X(where)); cursor.setAttribute("x2", X(where)); cursor.setAttribute("visibility", "visible");
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = bars ? chart.x[where] : `${chart.x_label} ${short(where)}`;
    tip.append(head);
    chart.series.forEach((s, i) => {
      if (!shown[i]) return;
      const k = places(s).indexOf(where);
      if (k < 0 || s.y[k] === null || s.y[k] === undefined) return;
      const interval = s.low && s.low[k] !== null ? ` (${short(s.low[k])} to ${short(s.high[k])})` : "";
      tip.append(` · ${s.name}: ${short(s.y[k])}${interval}`);
    });
  }

  chart.series.forEach((s, i) => {
    const item = document.createElement("li"), button = document.createElement("button"), mark = document.createElement("i");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    mark.style.setProperty("--colour", colour(i));
    if (s.dashed) mark.className = "dashed";
    button.append(mark, s.name);
    button.addEventListener("click", () => {
      shown[i] = !shown[i];
      button.setAttribute("aria-pressed", String(shown[i]));
      render();
    });
    item.append(button);
    legend.append(item);
  });
  render();
  new ResizeObserver(() => { if (Math.abs(box.clientWidth - width) > 4 && box.clientWidth >= 280 && box.clientWidth <= 760) render(); }).observe(box);
}
