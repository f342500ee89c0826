// The playground: drag p and q; flows, distances and gradients follow.
// A space is {names, x, y, parents, bins}: node places, the parent of each node (-1 at the root), the node of each bin.
function flows(space, difference) {
  const below = new Array(space.parents.length).fill(0);
  space.bins.forEach((node, i) => { below[node] += difference[i]; });
  // Children come after their parents, so that one pass from the end adds each branch up.
  for (let node = space.parents.length - 1; node > 0; node--) below[space.parents[node]] += below[node];
  return below;
}

function distance(space, difference, rho) {
  const below = flows(space, difference);
  let sum = 0;
  for (let node = 1; node < below.length; node++) sum += Math.abs(below[node]) ** rho;
  return sum;
}

// A flow that is only the rounding of p − q counts as none, as in the library.
function gradient(space, difference, rho) {
  const below = flows(space, difference).map(f => Math.abs(f) < 1e-14 ? 0 : f);
  const slope = below.map(f => rho * Math.sign(f) * Math.abs(f) ** (rho - 1));
  slope[0] = 0;
  const above = slope.slice();
  for (let node = 1; node < above.length; node++) above[node] += above[space.parents[node]];
  const values = space.bins.map(node => above[node]);
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return values.map(value => value - mean);
}

// The distances between the bins, all edges of cost 1.
function binDistances(space) {
  const path = node => { const found = []; for (let at = node; at >= 0; at = space.parents[at]) found.push(at); return found; };
  const paths = space.bins.map(path);
  return paths.map(a => paths.map(b => a.filter(node => !b.includes(node)).length + b.filter(node => !a.includes(node)).length));
}

// The Sinkhorn distance in the log domain: the scalings log u and log v in turn, as in the library.
function sinkhorn(distances, p, q, lam, sweeps = 2000) {
  const logarithm = x => Math.log(Math.max(x, 2.2250738585072014e-308));
  const a = p.map(logarithm), b = q.map(logarithm), n = p.length;
  const soft = values => { const top = Math.max(...values); return top + Math.log(values.reduce((sum, x) => sum + Math.exp(x - top), 0)); };
  let u = new Array(n).fill(0), v = new Array(n).fill(0);
  for (let k = 0; k < sweeps; k++) {
    v = b.map((x, j) => x - soft(u.map((w, i) => w - lam * distances[i][j])));
    u = a.map((x, i) => x - soft(v.map((w, j) => w - lam * distances[i][j])));
  }
  v = b.map((x, j) => x - soft(u.map((w, i) => w - lam * distances[i][j])));
  let value = 0;
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) value += distances[i][j] * Math.exp(u[i] + v[j] - lam * distances[i][j]);
  const mean = u.reduce((x, y) => x + y, 0) / n;
  return { value, gradient: u.map(x => (x - mean) / lam) };
}

// One bar is set, the others share what is left in their old proportions.
function withBar(masses, index, value) {
  value = Math.min(1, Math.max(0, value));
  const rest = masses.reduce((sum, mass, i) => i === index ? sum : sum + mass, 0);
  return masses.map((mass, i) => i === index ? value
    : rest > 1e-12 ? mass / rest * (1 - value) : (1 - value) / (masses.length - 1));
}

function startPlayground(root, spaces) {
  const picture = root.querySelector(".picture"), table = root.querySelector("tbody"), head = root.querySelector("thead tr");
  const choice = root.querySelector("select"), rhoSlider = root.querySelector(".rho"), lamSlider = root.querySelector(".lam");
  let space, p, q, distances;

  function choose(name) {
    space = spaces[name];
    p = space.p.slice(); q = space.q.slice();
    distances = binDistances(space);
    build();
    update();
  }

  const base = 420, tall = 130;
  let width = 640;
  let bars = [], edges = [];

  function build() {
    width = Math.round(Math.min(640, Math.max(300, picture.clientWidth || 640)));
    const svg = make("svg", { viewBox: `0 0 ${width} 450`, role: "group", "aria-label": "Bars of p and q that can be dragged, and the dirt on each edge" });
    const narrow = width < 480, side = narrow ? 46 : 50, X = x => side + x * (width - 2 * side), Y = y => 205 - y * 165;
    edges = space.parents.map((parent, node) => {
      if (parent < 0) return null;
      const [x1, y1, x2, y2] = [X(space.x[node]), Y(space.y[node]), X(space.x[parent]), Y(space.y[parent])];
      const line = make("line", { x1, y1, x2, y2, "stroke-linecap": "round" }, svg);
      // Neighbouring labels stand at different heights where they would touch.
      const odd = space.parents.slice(0, node).filter(other => other === parent).length % 2 + (y1 === y2 ? node % 2 : 0);
      const share = narrow && y1 !== y2 && odd ? 0.25 : 0.5, lift = narrow && y1 === y2 && odd ? 26 : 9;
      return { node, parent, line, text: make("text", { x: x1 + share * (x2 - x1), y: y1 + share * (y2 - y1) - lift, "text-anchor": "middle", "font-size": narrow ? 11.5 : 13, "paint-order": "stroke", stroke: "var(--card)", "stroke-width": 4 }, svg) };
    });
    space.names.forEach((name, node) => {
      make("circle", { cx: X(space.x[node]), cy: Y(space.y[node]), r: 5, fill: "var(--soft)" }, svg);
      const bin = space.bins.includes(node);
      make("text", { x: X(space.x[node]), y: Y(space.y[node]) + (bin ? 22 : -12), "text-anchor": "middle", "font-size": 13 }, svg, name);
    });
    bars = [];
    const wide = Math.min(narrow ? 22 : 26, 0.42 * (width - 2 * side) / space.bins.length);
    space.bins.forEach((node, i) => {
      for (const [which, offset, colour] of [["p", -wide - 1, "var(--c0)"], ["q", 1, "var(--c1)"]]) {
        const x = X(space.x[node]) + offset;
        const handle = make("g", { class: "bar", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": 1, "data-which": which, "data-bin": i, "aria-label": `${which} of ${space.names[node]}` }, svg);
        make("rect", { x, y: base - tall - 12, width: wide, height: tall + 12, fill: "transparent" }, handle);
        const bar = make("rect", { x, width: wide, fill: colour, rx: 2 }, handle);
        // Narrow bars have narrower labels, which extend outwards.
        const small = wide < 22, anchor = small ? (which === "p" ? "end" : "start") : "middle";
        const at = small ? (which === "p" ? x + wide : x) : x + wide / 2;
        const text = make("text", { x: at, "text-anchor": anchor, "font-size": small ? 8.5 : 11 }, handle);
        bars.push({ which, i, bar, text, handle });
        handle.addEventListener("pointerdown", event => { handle.setPointerCapture(event.pointerId); drag(event, which, i, svg); });
        handle.addEventListener("pointermove", event => { if (event.buttons) drag(event, which, i, svg); });
        handle.addEventListener("keydown", event => key(event, which, i));
      }
    });
    make("line", { class: "grid", x1: 14, x2: width - 10, y1: base, y2: base }, svg);
    make("text", { x: 2, y: base - tall + 4, "font-size": 12 }, svg, "1");
    make("text", { x: 2, y: base + 4, "font-size": 12 }, svg, "0");
    picture.replaceChildren(svg);
    head.replaceChildren(...["", ...space.bins.map(node => space.names[node])].map((name, i) => {
      const cell = document.createElement("th");
      cell.textContent = name;
      cell.scope = "col";
      if (i) cell.className = "number";
      return cell;
    }));
  }

  function drag(event, which, i, svg) {
    const place = svg.getBoundingClientRect();
    const y = (event.clientY - place.top) / place.height * 450;
    set(which, i, (base - y) / tall);
    event.preventDefault();
  }

  function key(event, which, i) {
    const step = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 }[event.key];
    const end = { Home: 0, End: 1 }[event.key];
    if (step === undefined && end === undefined) return;
    set(which, i, end ?? (which === "p" ? p : q)[i] + step);
    event.preventDefault();
  }

  function set(which, i, value) {
    if (which === "p") p = withBar(p, i, value); else q = withBar(q, i, value);
    update();
  }

  function update() {
    const difference = p.map((mass, i) => mass - q[i]), below = flows(space, difference);
    for (const { which, i, bar, text, handle } of bars) {
      const mass = (which === "p" ? p : q)[i];
      bar.setAttribute("y", base - mass * tall); bar.setAttribute("height", Math.max(1, mass * tall));
      text.setAttribute("y", base - mass * tall - 4); text.textContent = mass.toFixed(2);
      handle.setAttribute("aria-valuenow", mass.toFixed(3));
    }
    for (const edge of edges) {
      if (!edge) continue;
      const flow = below[edge.node], still = Math.abs(flow) < 1e-9;
      const to = (flow > 0) === (space.x[edge.parent] > space.x[edge.node]) ? "→" : "←";
      edge.text.textContent = still ? "0" : to === "→" ? `${Math.abs(flow).toFixed(2)} →` : `← ${Math.abs(flow).toFixed(2)}`;
      edge.line.setAttribute("stroke", still ? "var(--line)" : "var(--c2)");
      edge.line.setAttribute("stroke-width", 2 + 14 * Math.min(1, Math.abs(flow)));
    }
    const rho = Number(rhoSlider.value), lam = 10 ** Number(lamSlider.value), regularised = sinkhorn(distances, p, q, lam);
    root.querySelector(".rho-value").textContent = rho.toFixed(2);
    root.querySelector(".lam-value").textContent = lam.toPrecision(3);
    root.querySelector(".lam-value").dataset.value = lam;
    const values = { 1: distance(space, difference, 1), 2: distance(space, difference, 2), rho: distance(space, difference, rho), lam: regularised.value };
    for (const [name, value] of Object.entries(values)) {
      const output = root.querySelector(`output[data-rho="${name}"]`);
      output.textContent = value.toFixed(4);
      output.dataset.value = value;
    }
    const rows = { p, q, "∇EMD": gradient(space, difference, 1), "∇EMD²": gradient(space, difference, 2), "∇EMDρ": gradient(space, difference, rho), "∇SD": regularised.gradient };
    table.replaceChildren(...Object.entries(rows).map(([name, values]) => {
      const row = document.createElement("tr"), label = document.createElement("th");
      label.textContent = name; label.scope = "row";
      row.dataset.name = name; row.dataset.values = JSON.stringify(values);
      row.append(label, ...values.map(value => {
        const cell = document.createElement("td");
        cell.className = "number"; cell.textContent = (value + 0).toFixed(3).replace("-", "−");
        return cell;
      }));
      return row;
    }));
  }

  choice.addEventListener("change", () => choose(choice.value));
  new ResizeObserver(() => { if (Math.abs(Math.min(640, picture.clientWidth) - width) > 4 && picture.clientWidth >= 300) { build(); update(); } }).observe(picture);
  for (const slider of [rhoSlider, lamSlider]) slider.addEventListener("input", update);
  root.querySelector(".reset").addEventListener("click", () => { rhoSlider.value = 1.5; lamSlider.value = 0.5; choose(choice.value); });
  choose(choice.value);
}
