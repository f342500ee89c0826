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

// One bar is set, the others share what is left in their old proportions.
function withBar(masses, index, value) {
  value = Math.min(1, Math.max(0, value));
  const rest = masses.reduce((sum, mass, i) => i === index ? sum : sum + mass, 0);
  return masses.map((mass, i) => i === index ? value
    : rest > 1e-12 ? mass / rest * (1 - value) : (1 - value) / (masses.length - 1));
}

function startPlayground(root, spaces) {
  const picture = root.querySelector(".picture"), table = root.querySelector("tbody"), head = root.querySelector("thead tr");
  const choice = root.querySelector("select");
  let space, p, q;

  function choose(name) {
    space = spaces[name];
    p = space.p.slice(); q = space.q.slice();
    build();
    update();
  }

  const base = 420, tall = 130;
  let width = 640;
  let bars = [], edges = [];

  function build() {
    width = Math.round(Math.min(640, Math.max(300, picture.clientWidth || 640)));
    const svg = make("svg", { viewBox: `0 0 ${width} 450`, role: "group", "aria-label": "Bars of p and q that can be dragged, and the dirt on each edge" });
    const side = width < 480 ? 34 : 50, X = x => side + x * (width - 2 * side), Y = y => 205 - y * 165;
    edges = space.parents.map((parent, node) => {
      if (parent < 0) return null;
      const [x1, y1, x2, y2] = [X(space.x[node]), Y(space.y[node]), X(space.x[parent]), Y(space.y[parent])];
      const line = make("line", { x1, y1, x2, y2, "stroke-linecap": "round" }, svg);
      return { node, parent, line, text: make("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 9, "text-anchor": "middle", "font-size": 13, "paint-order": "stroke", stroke: "var(--card)", "stroke-width": 4 }, svg) };
    });
    space.names.forEach((name, node) => {
      make("circle", { cx: X(space.x[node]), cy: Y(space.y[node]), r: 5, fill: "var(--soft)" }, svg);
      const bin = space.bins.includes(node);
      make("text", { x: X(space.x[node]), y: Y(space.y[node]) + (bin ? 22 : -12), "text-anchor": "middle", "font-size": 13 }, svg, name);
    });
    bars = [];
    const wide = Math.min(26, 0.42 * (width - 2 * side) / space.bins.length);
    space.bins.forEach((node, i) => {
      for (const [which, offset, colour] of [["p", -wide - 1, "var(--c0)"], ["q", 1, "var(--c1)"]]) {
        const x = X(space.x[node]) + offset;
        const handle = make("g", { class: "bar", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": 1, "data-which": which, "data-bin": i, "aria-label": `${which} of ${space.names[node]}` }, svg);
        make("rect", { x, y: base - tall - 12, width: wide, height: tall + 12, fill: "transparent" }, handle);
        const bar = make("rect", { x, width: wide, fill: colour, rx: 2 }, handle);
        const text = make("text", { x: x + wide / 2, "text-anchor": "middle", "font-size": wide < 20 ? 8 : 11 }, handle);
        bars.push({ which, i, bar, text, handle });
        handle.addEventListener("pointerdown", event => { handle.setPointerCapture(event.pointerId); drag(event, which, i, svg); });
        handle.addEventListener("pointermove", event => { if (event.buttons) drag(event, which, i, svg); });
        handle.addEventListener("keydown", event => key(event, which, i));
      }
    });
    make("line", { class: "grid", x1: 10, x2: width - 10, y1: base, y2: base }, svg);
    make("text", { x: 12, y: base - tall + 4, "font-size": 12 }, svg, "1");
    make("text", { x: 12, y: base - 4, "font-size": 12 }, svg, "0");
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
    if (step === undefined) return;
    set(which, i, (which === "p" ? p : q)[i] + step);
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
    for (const rho of [1, 2]) {
      const output = root.querySelector(`output[data-rho="${rho}"]`), value = distance(space, difference, rho);
      output.textContent = value.toFixed(4);
      output.dataset.value = value;
    }
    const rows = { p, q, "∇EMD": gradient(space, difference, 1), "∇EMD²": gradient(space, difference, 2) };
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
  root.querySelector(".reset").addEventListener("click", () => choose(choice.value));
  choose(choice.value);
}
