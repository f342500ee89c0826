// The playground of the home page: drag the probabilities of a few classes and see what every loss, its gradient and
// the decision make of them. No dependency; tests/docs/test_playground.py compares the formulas with the library.
"use strict";
const Playground = (() => {
  // A space: names of the classes, and the tree of its nodes (names, parents, the node of each class) where it has one.
  const SPACES = {
    row: { title: "a row: stars of a review", kind: "chain", names: ["1★", "2★", "3★", "4★", "5★"], p: [0.36, 0.06, 0.06, 0.3, 0.22], label: 3 },
    ring: { title: "a ring: directions of the wind", kind: "ring", names: ["N", "NE", "E", "SE", "S", "SW", "W", "NW"], p: [0.22, 0.18, 0.03, 0.03, 0.32, 0.03, 0.03, 0.16], label: 7 },
    tree: { title: "a tree: animals and vehicles", kind: "tree", names: ["cat", "dog", "horse", "car", "truck"], p: [0.3, 0.24, 0.08, 0.03, 0.35], label: 0,
      nodes: ["thing", "animal", "vehicle", "cat", "dog", "horse", "car", "truck"], parents: [-1, 0, 0, 1, 1, 1, 2, 2], bins: [3, 4, 5, 6, 7] },
  };
  const ALPHA = 0.1, BETA = 10, LAMBDA = 3;
  const sum = values => values.reduce((a, b) => a + b, 0);

  // The edges as lists of the classes on one side: those before each edge of a row or ring, those below in a tree.
  function sides(space) {
    const n = space.names.length;
    if (space.kind !== "tree") return Array.from({ length: space.kind === "ring" ? n : n - 1 }, (_, e) => [...Array(e + 1).keys()]);
    const below = node => [...Array(n).keys()].filter(bin => path(space, space.bins[bin]).includes(node));
    return space.parents.map((_, node) => node).filter(node => space.parents[node] >= 0).map(below);
  }

  function path(space, node) {
    const found = [];
    for (let at = node; at >= 0; at = space.parents[at]) found.push(at);
    return found;
  }

  function nodeDistance(space, a, b) {
    const [up, down] = [path(space, a), path(space, b)];
    return up.filter(node => !down.includes(node)).length + down.filter(node => !up.includes(node)).length;
  }

  function distance(space, i, j) {
    if (space.kind === "tree") return nodeDistance(space, space.bins[i], space.bins[j]);
    const apart = Math.abs(i - j);
    return space.kind === "ring" ? Math.min(apart, space.names.length - apart) : apart;
  }

  const distances = (space, j) => space.names.map((_, i) => distance(space, i, j));
  const flow = (space, x) => sides(space).map(side => sum(side.map(i => x[i])));
  const potential = (space, g) => space.names.map((_, i) => sum(sides(space).map((side, e) => side.includes(i) ? g[e] : 0)));

  // The gradient by the logits of what has this gradient by the probabilities.
  const byLogits = (p, g) => { const mean = sum(p.map((x, i) => x * g[i])); return p.map((x, i) => x * (g[i] - mean)); };
  const height = (space, node) => Math.max(0, ...space.parents.map((parent, child) => parent === node ? 1 + height(space, child) : 0));

  // Every loss of probabilities p and a label: its value, and its gradient by the logits.
  function losses(space, p, label) {
    const hot = p.map((_, i) => i === label ? 1 : 0), d = distances(space, label), found = {};
    found["cross entropy"] = { value: -Math.log(p[label]), gradient: p.map((x, i) => x - hot[i]) };
    found["EMD"] = { value: sum(p.map((x, i) => x * d[i])), gradient: byLogits(p, d) };
    let phi = flow(space, p.map((x, i) => x - hot[i]));
    if (space.kind === "ring") { const mean = sum(phi) / phi.length; phi = phi.map(x => x - mean); }
    found["EMD²"] = { value: sum(phi.map(x => x * x)), gradient: byLogits(p, potential(space, phi.map(x => 2 * x))) };
    if (space.kind !== "ring") {
      const m = flow(space, p), above = flow(space, hot);
      found["edge cross entropy"] = {
        value: -sum(m.map((x, e) => above[e] ? Math.log(x) : Math.log1p(-x))),
        gradient: byLogits(p, potential(space, m.map((x, e) => above[e] ? -1 / x : 1 / (1 - x)))),
      };
    }
    if (space.kind === "tree") {
      const mass = node => sum(p.filter((_, i) => path(space, space.bins[i]).includes(node)));
      const steps = path(space, space.bins[label]).slice(0, -1), weight = node => Math.exp(-ALPHA * height(space, node));
      const slope = p.map((_, i) => sum(steps.map(node => {
        const inside = other => path(space, space.bins[i]).includes(other), parent = space.parents[node];
        return weight(node) * ((inside(parent) ? 1 / mass(parent) : 0) - (inside(node) ? 1 / mass(node) : 0));
      })));
      found["hierarchical cross entropy"] = {
        value: -sum(steps.map(node => weight(node) * Math.log(mass(node) / mass(space.parents[node])))), gradient: byLogits(p, slope),
      };
    }
    const diameter = Math.max(...space.names.map((_, i) => Math.max(...distances(space, i))));
    const near = d.map(x => Math.exp(-BETA * x / diameter)), soft = near.map(x => x / sum(near));
    found["soft labels"] = { value: -sum(p.map((x, i) => soft[i] * Math.log(x))), gradient: p.map((x, i) => x - soft[i]) };
    found["Sinkhorn"] = { value: found["EMD"].value, gradient: byLogits(p, d.map((x, i) => x + Math.log(p[i]) / LAMBDA)) };
    return found;
  }

  // The expected distance of every class, the answers, and on a tree the best node. Ties go to the first.
  function decide(space, p) {
    const first = risks => risks.findIndex(risk => risk <= Math.min(...risks) + 1e-12);
    const risk = space.names.map((_, i) => sum(distances(space, i).map((x, j) => p[j] * x)));
    const answer = { risk, probable: p.indexOf(Math.max(...p)), least: first(risk) };
    if (space.kind === "tree") answer.node = first(space.nodes.map((_, node) => sum(space.bins.map((bin, j) => p[j] * nodeDistance(space, node, bin)))));
    return answer;
  }

  // One class is set; the others share the rest in their old proportions. No class falls below 0.1 %.
  function withBar(p, index, value) {
    const least = 0.001, set = Math.min(1 - least * (p.length - 1), Math.max(least, value));
    const over = p.map((x, i) => i === index ? 0 : Math.max(x - least, 1e-9)), left = 1 - set - least * (p.length - 1);
    return p.map((_, i) => i === index ? set : least + over[i] / sum(over) * left);
  }

  const STYLE = `
.playground { --bar: #cfc8c0; --truth: #e0922f; --edge: #8d5524; --up: #2e7d32; --down: #b3261e; font-size: .75rem; }
[data-md-color-scheme="slate"] .playground { --bar: #6b6560; --edge: #c08552; --up: #81c784; --down: #f28b82; }
.playground .controls { display: flex; flex-wrap: wrap; gap: .3rem .6rem; align-items: center; }
.playground select, .playground button { font: inherit; color: inherit; background: none; border: 1px solid currentColor; border-radius: .2rem; padding: .2rem .5rem; cursor: pointer; }
.playground option { color: #222; background: #fff; }
.playground svg { display: block; width: 100%; max-width: 40rem; height: auto; touch-action: pan-y; }
.playground svg text { fill: currentColor; font-family: inherit; text-anchor: middle; }
.playground .bar { cursor: ns-resize; touch-action: none; }
.playground .bar:focus-visible, .playground .label:focus-visible { outline: 2px solid var(--edge); }
.playground .label { cursor: pointer; }
.playground .answers { min-height: 3.2em; margin: .2rem 0; }
.playground .scroll { overflow-x: auto; }
.playground table { border-collapse: collapse; width: 100%; max-width: 40rem; margin: .4rem 0; font-size: .65rem; font-variant-numeric: tabular-nums; }
.playground th, .playground td { padding: .15rem .3rem; text-align: right; white-space: nowrap; font-weight: normal; border-top: 1px solid #8884; }
.playground th:first-child { text-align: left; white-space: normal; }
.playground .up { color: var(--up); }
.playground .down { color: var(--down); }`;

  function make(name, attributes, parent, text) {
    const element = document.createElementNS(name === "svg" || parent?.namespaceURI?.endsWith("svg") ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent?.append(element);
    return element;
  }

  function start(root) {
    root.classList.add("playground");
    make("style", {}, root, STYLE);
    const controls = make("div", { class: "controls" }, root), choice = make("select", { "aria-label": "How the classes are arranged" }, controls);
    for (const [name, { title }] of Object.entries(SPACES)) make("option", { value: name }, choice, title);
    const reset = make("button", { type: "button" }, controls, "Reset");
    make("span", {}, controls, "Drag a bar, or click a name to make it the true class.");
    const picture = make("div", {}, root), answers = make("p", { class: "answers", "aria-live": "polite" }, root);
    const table = make("table", { class: "numbers" }, make("div", { class: "scroll" }, root));
    make("p", {}, root, "Below the classes: the gradient with respect to the logits. A step of training raises the green classes and lowers the red ones.");
    let space, p, label, bars, width;
    const tall = 150, head = 16, names = head + tall + 16;

    function choose() {
      space = SPACES[choice.value]; p = space.p.slice(); label = space.label;
      build();
    }

    function build() {
      width = Math.max(300, Math.min(640, root.clientWidth || 640));
      const n = space.names.length, X = i => (i + 0.5) * width / n, deep = space.kind === "tree" ? 96 : space.kind === "ring" ? 34 : 14;
      const svg = make("svg", { viewBox: `0 0 ${width} ${names + deep}`, role: "group", "aria-label": "Probabilities that can be dragged" });
      const base = names + 14, line = (x1, y1, x2, y2) => make("line", { x1, y1, x2, y2, stroke: "var(--edge)", "stroke-width": 2 }, svg);
      if (space.kind === "tree") {
        const at = [], level = node => base + 28 * (path(space, space.bins[0]).length - path(space, node).length);
        for (let node = space.parents.length - 1; node >= 0; node--) {
          const children = space.parents.flatMap((parent, child) => parent === node ? [at[child]] : []);
          at[node] = children.length ? sum(children) / children.length : X(space.bins.indexOf(node));
        }
        space.parents.forEach((parent, node) => { if (parent >= 0) line(at[node], level(node), at[parent], level(parent)); });
        space.nodes.forEach((name, node) => { if (!space.bins.includes(node)) make("text", { x: at[node], y: level(node) + 15, "font-size": 12, class: "node", "data-node": node }, svg, name); });
      } else {
        line(X(0), base - 4, X(n - 1), base - 4);
        if (space.kind === "ring") make("path", { d: `M ${X(0)} ${base - 4} C ${X(0)} ${base + 26}, ${X(n - 1)} ${base + 26}, ${X(n - 1)} ${base - 4}`, fill: "none", stroke: "var(--edge)", "stroke-width": 2 }, svg);
      }
      bars = space.names.map((name, i) => {
        const handle = make("g", { class: "bar", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": 1, "aria-label": `probability of ${name}`, "data-bin": i }, svg);
        const wide = Math.min(54, 0.7 * width / n);
        make("rect", { x: X(i) - wide / 2, y: 0, width: wide, height: head + tall, fill: "transparent" }, handle);
        const bar = make("rect", { x: X(i) - wide / 2, width: wide, rx: 2 }, handle), value = make("text", { x: X(i), "font-size": 12 }, handle);
        const text = make("text", { x: X(i), y: names, "font-size": 14, class: "label", tabindex: 0, role: "button", "data-bin": i }, svg, name);
        const drag = event => {
          const place = svg.getBoundingClientRect(), y = (event.clientY - place.top) / place.height * (names + deep);
          set(i, (head + tall - y) / tall);
          event.preventDefault();
        };
        handle.addEventListener("pointerdown", event => { handle.setPointerCapture(event.pointerId); drag(event); });
        handle.addEventListener("pointermove", event => { if (event.buttons) drag(event); });
        handle.addEventListener("keydown", event => {
          const step = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1, Home: -1, End: 1 }[event.key];
          if (step !== undefined) { set(i, p[i] + step); event.preventDefault(); }
        });
        const take = () => { label = i; update(); };
        text.addEventListener("click", take);
        text.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { take(); event.preventDefault(); } });
        return { handle, bar, value, text };
      });
      picture.replaceChildren(svg);
      update();
    }

    function set(i, value) { p = withBar(p, i, value); update(); }

    function update() {
      bars.forEach(({ handle, bar, value, text }, i) => {
        const top = head + tall * (1 - p[i]);
        bar.setAttribute("y", top); bar.setAttribute("height", tall * p[i]); bar.setAttribute("fill", i === label ? "var(--truth)" : "var(--bar)");
        value.setAttribute("y", top - 4); value.textContent = p[i].toFixed(2);
        handle.setAttribute("aria-valuenow", p[i].toFixed(3));
        text.setAttribute("font-weight", i === label ? "bold" : "normal");
        text.setAttribute("aria-pressed", i === label);
      });
      const { risk, probable, least, node } = decide(space, p);
      const inner = node === undefined ? "" : `; with inner nodes ${space.nodes[node]}`;
      answers.textContent = `True class: ${space.names[label]}. Most probable: ${space.names[probable]}. Least expected distance (decide): ${space.names[least]}${inner}.`;
      const rows = Object.entries(losses(space, p, label));
      table.replaceChildren();
      const header = make("tr", {}, table);
      for (const text of ["", "value", ...space.names]) make("th", { scope: "col" }, header, text);
      const number = x => x.toFixed(2).replace("-0.00", "0.00").replace("-", "−");
      for (const [name, { value, gradient }] of rows) {
        const row = make("tr", { "data-name": name }, table);
        make("th", { scope: "row" }, row, name);
        make("td", {}, row, number(value));
        for (const x of gradient) make("td", { class: x < -0.005 ? "up" : x > 0.005 ? "down" : "" }, row, number(x));
      }
      const last = make("tr", { "data-name": "expected distance" }, table);
      make("th", { scope: "row" }, last, "expected distance");
      make("td", {}, last, "");
      risk.forEach((x, i) => make("td", i === least ? { style: "font-weight: bold" } : {}, last, number(x)));
      root.dataset.state = JSON.stringify({ p, label, losses: Object.fromEntries(rows), decision: { risk, probable, least, node } });
    }

    choice.addEventListener("change", choose);
    reset.addEventListener("click", choose);
    new ResizeObserver(() => { if (Math.abs(Math.max(300, Math.min(640, root.clientWidth)) - width) > 4) build(); }).observe(root);
    choose();
  }

  return { SPACES, losses, decide, withBar, start };
})();
for (const root of document.querySelectorAll("#try-losses")) Playground.start(root);
