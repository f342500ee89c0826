// Classes on a circle, with a tree inside if there is one: wheel or pinch to zoom, drag to move, click for neighbours.
// A chain, a ring or a cost matrix comes as the leaves of a star that is not drawn, with places or a matrix.
function startSpace(svg, side, tree) {
  const flat = Boolean(tree.places || tree.matrix);
  const count = tree.parents.length, children = tree.parents.map(() => []);
  let root = 0;
  tree.parents.forEach((parent, node) => { if (parent < 0) root = node; else children[parent].push(node); });
  const depth = new Array(count).fill(0), order = [root], classOf = new Map(tree.bins.map((node, i) => [node, i]));
  for (let k = 0; k < order.length; k++) for (const child of children[order[k]]) { depth[child] = depth[order[k]] + 1; order.push(child); }
  const leaves = new Array(count).fill(0), angle = new Array(count).fill(0), start = new Array(count).fill(0);
  for (const node of order.slice().reverse()) leaves[node] = children[node].length ? children[node].reduce((sum, child) => sum + leaves[child], 0) : 1;
  for (const node of order) {
    let at = start[node];
    angle[node] = (at + leaves[node] / 2) / leaves[root] * 2 * Math.PI;
    for (const child of children[node]) { start[child] = at; at += leaves[child]; }
  }
  const deepest = Math.max(...depth), radius = node => children[node].length ? 380 * depth[node] / deepest : 400;
  const place = node => [500 + radius(node) * Math.cos(angle[node]), 500 + radius(node) * Math.sin(angle[node])];

  let view = [0, 0, 1000, 1000];
  const show = () => {
    svg.setAttribute("viewBox", view.join(" "));
    labels.setAttribute("visibility", flat && tree.bins.length <= 60 || view[2] < 320 ? "visible" : "hidden");
  };
  const zoom = (factor, cx = view[0] + view[2] / 2, cy = view[1] + view[3] / 2) => {
    const size = Math.min(1000, Math.max(12, view[2] * factor)), ratio = size / view[2];
    view = [cx - (cx - view[0]) * ratio, cy - (cy - view[1]) * ratio, size, size];
    show();
  };

  let lines = "";
  const ends = flat ? tree.bins.map((node, i) => [node, tree.bins[i - 1] ?? (tree.around ? tree.bins.at(-1) : node)]) : order.filter(node => node !== root).map(node => [node, tree.parents[node]]);
  for (const [a, b] of tree.matrix ? [] : ends) {
    const [x1, y1] = place(a), [x2, y2] = place(b);
    lines += `M${x1.toFixed(2)},${y1.toFixed(2)}L${x2.toFixed(2)},${y2.toFixed(2)}`;
  }
  make("path", { d: lines, "stroke-width": 0.7, "vector-effect": "non-scaling-stroke", opacity: 0.6 }, svg);
  const labels = make("g", {}, svg), dots = new Array(count), drawn = flat ? tree.bins : order;
  const large = flat && tree.bins.length <= 60 ? 8 : 1;
  for (const node of drawn) {
    const [x, y] = place(node), inner = children[node].length > 0, turned = Math.cos(angle[node]) < 0;
    dots[node] = make("circle", { cx: x.toFixed(2), cy: y.toFixed(2), r: inner ? 1.6 : 1.1 * Math.sqrt(large), class: inner ? "node inner" : "node", "data-node": node }, svg);
    make("title", {}, dots[node], tree.names[node]);
    const degrees = angle[node] * 180 / Math.PI + (turned ? 180 : 0);
    if (inner) make("text", { x, y: y - 2.5, "font-size": 2.6, "text-anchor": "middle", "pointer-events": "none" }, labels, tree.names[node]);
    else make("text", { transform: `translate(${x} ${y}) rotate(${degrees}) translate(${(turned ? -1 : 1) * (1.5 + large)} ${0.7 * large})`, "font-size": 2 * large, "text-anchor": turned ? "end" : "start", "pointer-events": "none" }, labels, tree.names[node]);
  }

  const path = node => { const found = []; for (let at = node; at >= 0; at = tree.parents[at]) found.push(at); return found; };
  // Without costs every edge costs 1. The distance goes up to the lowest common ancestor and down again.
  const cost = node => tree.costs ? tree.costs[node] : 1;
  function distances(node) {
    if (flat) return tree.names.map((_, other) => other === root ? Infinity : flatDistance(other - 1, node - 1));
    const far = new Array(count).fill(Infinity), queue = [node];
    far[node] = 0;
    for (let k = 0; k < queue.length; k++) {
      const at = queue[k], next = tree.parents[at] >= 0 ? [...children[at], tree.parents[at]] : children[at];
      for (const other of next) if (far[other] === Infinity) { far[other] = far[at] + cost(tree.parents[other] === at ? other : at); queue.push(other); }
    }
    return far;
  }

  // From the answer to the truth, which is the class that was chosen.
  function flatDistance(answer, truth) {
    if (tree.matrix) return tree.matrix[answer][truth];
    const gap = Math.abs(tree.places[answer] - tree.places[truth]);
    return tree.around ? Math.min(gap, tree.around - gap) : gap;
  }

  function list(title, entries) {
    const heading = document.createElement("h3"), items = document.createElement("ul");
    heading.textContent = title;
    for (const [node, text] of entries) {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      button.textContent = tree.names[node];
      button.addEventListener("click", () => choose(node, true));
      item.append(button, ` ${text}`);
      items.append(item);
    }
    return [heading, items];
  }

  function choose(node, move = false) {
    for (const node of drawn) dots[node].classList.remove("chosen", "near");
    dots[node].classList.add("chosen");
    const far = distances(node);
    const near = tree.bins.filter(other => other !== node).sort((a, b) => far[a] - far[b]).slice(0, 10);
    near.forEach(other => dots[other].classList.add("near"));
    const title = document.createElement("h3");
    title.textContent = tree.names[node] + (classOf.has(node) ? ` (class ${classOf.get(node)})` : ` (${leaves[node]} classes)`);
    const parts = [title, ...flat ? [] : list("Above it", path(node).slice(1).map(other => [other, ""])), ...list("Nearest classes", near.map(other => [other, `at distance ${short(far[other])}`]))];
    if (tree.confusions && classOf.has(node)) {
      const found = tree.confusions.classes[classOf.get(node)] || [];
      parts.push(...list(`Costliest confusions, ${tree.confusions.name}`, found.map(([other, times, total]) => [tree.bins[other], `${times} times, cost ${short(total)}`])));
      if (!found.length) { const none = document.createElement("p"); none.className = "soft"; none.textContent = "No mistakes."; parts.push(none); }
    }
    side.replaceChildren(...parts);
    side.dataset.node = node;
    if (move) { const [x, y] = place(node); view = [x - 60, y - 60, 120, 120]; show(); }
  }

  const pointers = new Map();
  let moved = 0;
  const inside = event => { const box = svg.getBoundingClientRect(); return [view[0] + (event.clientX - box.left) / box.width * view[2], view[1] + (event.clientY - box.top) / box.height * view[3]]; };
  svg.addEventListener("wheel", event => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, ...inside(event)); }, { passive: false });
  svg.addEventListener("pointerdown", event => { pointers.set(event.pointerId, event); moved = 0; });
  svg.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const box = svg.getBoundingClientRect();
    if (pointers.size === 1) {
      view[0] -= (event.clientX - before.clientX) / box.width * view[2];
      view[1] -= (event.clientY - before.clientY) / box.height * view[3];
      moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
      show();
    } else {
      const other = [...pointers.values()].find(pointer => pointer.pointerId !== event.pointerId);
      const gap = e => Math.hypot(e.clientX - other.clientX, e.clientY - other.clientY);
      zoom(gap(before) / Math.max(1, gap(event)), ...inside(other));
      moved = 99;
    }
    pointers.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) svg.addEventListener(end, event => pointers.delete(event.pointerId));
  svg.addEventListener("click", event => {
    if (moved > 6) return;
    const [x, y] = inside(event), reach = view[2] / 60;
    let best = null;
    for (const node of drawn) { const [a, b] = place(node), d = Math.hypot(a - x, b - y); if (d < reach && (best === null || d < best[0])) best = [d, node]; }
    if (best) choose(best[1]);
  });
  const controls = document.getElementById("space-controls");
  controls.querySelector(".in").addEventListener("click", () => zoom(0.6));
  controls.querySelector(".out").addEventListener("click", () => zoom(1 / 0.6));
  controls.querySelector(".all").addEventListener("click", () => { view = [0, 0, 1000, 1000]; show(); });
  const search = controls.querySelector("input"), options = document.getElementById("space-names");
  for (const name of new Set(tree.bins.map(node => tree.names[node]))) { const option = document.createElement("option"); option.value = name; options.append(option); }
  search.addEventListener("change", () => {
    const wanted = search.value.trim().toLowerCase();
    const node = tree.bins.find(other => tree.names[other].toLowerCase() === wanted) ?? tree.bins.find(other => wanted && tree.names[other].toLowerCase().includes(wanted));
    const message = document.getElementById("space-message");
    message.textContent = node === undefined && wanted ? `No class is called “${search.value.trim()}”.` : "";
    if (node !== undefined) choose(node, true);
  });
  show();
}
