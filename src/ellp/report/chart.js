// Charts: elements, numbers, scales, curves in a frame, and what pointer and keys do in it. Texts are never markup.

// ---- elements and numbers ----

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const html = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const finite = (values) => values.every((value) => typeof value === "number" && Number.isFinite(value));
const unsigned = (text) => (Number(text) === 0 ? text.replace("-", "") : text.replace("-", "\u2212"));
const points = (value, digits = 2) => (typeof value === "number" ? unsigned(value.toFixed(digits)) : String(value).replace("inf", "∞"));
const percent = (value, digits = 1) => `${unsigned((100 * value).toFixed(digits))} %`;
const short = (value) => unsigned(String(+value.toPrecision(3)));
function fraction(value) {
  if (!(value > 0 && value <= 2 / 3)) return `${+(100 * value).toPrecision(3)} %`;
  const times = 1 / value;
  return `1/${times >= 10 || Math.abs(times - Math.round(times)) < 0.05 ? Math.round(times) : times.toFixed(1)}`;
}
function size(count) {
  for (const unit of ["B", "kB", "MB"]) {
    if (count < 999.5) return `${+count.toPrecision(3)} ${unit}`;
    count /= 1000;
  }
  return `${+count.toPrecision(3)} GB`;
}

// ---- scales ----

const even = { of: (value) => value, ticks: (low, high, count) => nice(low, high, count) };
const small = {
  of: (value) => Math.sign(value) * Math.log1p(Math.abs(value) / 0.5),
  ticks(low, high) {
    const steps = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e5, 1e6];
    return [...steps.map((step) => -step).reverse(), 0, ...steps].filter((step) => step >= low && step <= high);
  },
};
const logarithm = { of: (value) => Math.log2(value) };

function nice(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step); tick * step <= high + step * 1e-9; tick++) ticks.push(+(tick * step).toPrecision(12));
  return ticks;
}

// ---- drawing ----

const DASHES = { solid: null, dash: "7 4", dot: "1.5 4.5", dashdot: "8 4 1.5 4" };
const MARKS = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  square: (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
  diamond: (r) => `M0 ${-1.35 * r}L${1.35 * r} 0L0 ${1.35 * r}L${-1.35 * r} 0Z`,
  up: (r) => `M0 ${-1.25 * r}L${1.2 * r} ${r}H${-1.2 * r}Z`,
  down: (r) => `M0 ${1.25 * r}L${1.2 * r} ${-r}H${-1.2 * r}Z`,
  cross: (r) => {
    const [a, b] = [r * 1.1, r * 0.4];
    return `M${-a} ${-b}H${-b}V${-a}H${b}V${-b}H${a}V${b}H${b}V${a}H${-b}V${b}H${-a}Z`;
  },
  hexagon: (r) => `M${-1.15 * r} 0L${-0.58 * r} ${r}H${0.58 * r}L${1.15 * r} 0L${0.58 * r} ${-r}H${-0.58 * r}Z`,
};
const mark = (look, r) => MARKS[look[2]](r);
const place = (number) => +number.toFixed(2);

// A frame with its axes; gives the two maps from values to pixels.
function frame(spec) {
  const { width, height, margin, x, y } = spec;
  const inner = [width - margin.left - margin.right, height - margin.top - margin.bottom];
  const map = (axis, start, length) => {
    const [low, high] = axis.domain.map(axis.scale.of);
    return (value) => place(start + (length * (axis.scale.of(value) - low)) / (high - low || 1));
  };
  const toX = map(x, margin.left, inner[0]);
  const toY = map({ ...y, domain: [...y.domain].reverse() }, margin.top, inner[1]);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, ...spec.attributes });
  const back = svg("g", { "aria-hidden": "true" });
  for (const tick of y.ticks) {
    back.append(
      svg("line", { class: tick === 0 ? "zero" : "grid", x1: margin.left, x2: margin.left + inner[0], y1: toY(tick), y2: toY(tick) }),
      svg("text", { x: margin.left - 8, y: toY(tick) + 4, "text-anchor": "end" }, y.text(tick)),
    );
  }
  let last = -1e9;
  for (const tick of x.ticks) {
    if (Math.abs(toX(tick) - last) < spec.apart) continue;
    last = toX(tick);
    back.append(svg("text", { x: last, y: height - margin.bottom + 18, "text-anchor": "middle" }, x.text(tick)));
  }
  if (x.title) back.append(svg("text", { x: margin.left + inner[0] / 2, y: height - 4, "text-anchor": "middle" }, x.title));
  if (y.title) back.append(svg("text", { x: margin.left - 34, y: 12 }, y.title));
  root.append(back);
  return { root, back, toX, toY, right: margin.left + inner[0], bottom: margin.top + inner[1] };
}

function curve(found, one, bands) {
  const { toX, toY } = found;
  const spots = one.spots.map((spot) => ({ ...spot, px: toX(spot.x), py: toY(spot.y) }));
  const [color, dash, , width] = one.look;
  const group = svg("g", { class: `curve c${color}`, "data-series": one.label });
  if (bands && spots.every((spot) => spot.low !== undefined)) {
    if (spots.length > 1) {
      const above = spots.map((spot) => `${spot.px} ${toY(spot.high)}`);
      const below = spots.map((spot) => `${spot.px} ${toY(spot.low)}`).reverse();
      group.append(svg("path", { class: "band", d: `M${above.concat(below).join("L")}Z` }));
    } else {
      for (const spot of spots) group.append(svg("path", { class: "whisker", d: `M${spot.px} ${toY(spot.low)}V${toY(spot.high)}` }));
    }
  }
  group.append(
    svg("path", { class: "line", d: `M${spots.map((spot) => `${spot.px} ${spot.py}`).join("L")}`, "stroke-width": width, "stroke-dasharray": DASHES[dash] }),
  );
  found.root.append(group);
  return { ...one, spots, group };
}

// Names at the curves' ends, moved apart where they would touch.
function names(found, curves, height, letters) {
  const ends = curves.map((one) => ({ one, spot: one.spots[one.spots.length - 1] })).sort((a, b) => a.spot.py - b.spot.py);
  const step = 15;
  let top = 8;
  for (const end of ends) top = (end.y = Math.max(end.spot.py, top)) + step;
  let bottom = height - 40;
  for (const end of [...ends].reverse()) bottom = (end.y = Math.min(end.y, bottom)) - step;
  for (const { one, spot, y } of ends) {
    const half = Math.floor((letters - 1) / 2);
    const text = one.label.length > letters ? `${one.label.slice(0, half)}…${one.label.slice(-half)}` : one.label;
    one.group.append(
      svg("line", { class: "leader", x1: spot.px + 6, y1: spot.py, x2: found.right + 9, y2: y, "aria-hidden": "true" }),
      svg("text", { class: "name", x: found.right + 12, y: y + 4, "aria-hidden": "true" }, text),
    );
  }
}

// Pointer, touch and keys: the nearest point is named in a tip; Tab enters, arrows walk, Escape leaves.
function explore(host, found, curves, describe, memory) {
  const all = curves.flatMap((one, row) => one.spots.map((spot, column) => ({ one, spot, row, column })));
  const ring = svg("path", { class: "ring", visibility: "hidden", "aria-hidden": "true" });
  let tip = null;
  for (const item of all) {
    item.node = svg("path", {
      class: "point", d: mark(item.one.look, item.one.spots.length > 40 ? 2.2 : 4.3), transform: `translate(${item.spot.px} ${item.spot.py})`,
      role: "img", tabindex: -1, "aria-label": describe(item.one, item.spot).join(", "),
    });
    item.one.group.append(item.node);
    item.node.addEventListener("focus", () => show(item));
    item.node.addEventListener("blur", hide);
  }
  found.root.append(ring);
  const first = all.find((item) => item.one.label === memory.label && item.column === memory.column) || all[0];
  if (first) first.node.setAttribute("tabindex", 0);

  function show(item) {
    hide();
    found.root.classList.add("active");
    item.one.group.classList.add("on");
    ring.setAttribute("d", mark(item.one.look, 8));
    ring.setAttribute("transform", `translate(${item.spot.px} ${item.spot.py})`);
    ring.setAttribute("visibility", "visible");
    const [name, setting, drop, ...rest] = describe(item.one, item.spot);
    tip = html("div", { class: "tip", role: "presentation" },
      html("p", { class: "name" }, name), html("p", {}, setting), html("p", {}, html("b", {}, drop)), ...rest.map((text) => html("p", {}, text)));
    host.append(tip);
    const ratio = found.root.getBoundingClientRect().width / found.root.viewBox.baseVal.width;
    const [x, y] = [item.spot.px * ratio, item.spot.py * ratio];
    const left = x + 16 + tip.offsetWidth <= host.clientWidth ? x + 16 : x - 16 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(left, host.clientWidth - tip.offsetWidth))}px`;
    const covered = left < 0;
    tip.style.top = `${covered ? (y > tip.offsetHeight + 14 ? y - tip.offsetHeight - 14 : y + 18) : Math.max(0, y - tip.offsetHeight / 2)}px`;
  }
  function hide() {
    tip?.remove();
    tip = null;
    ring.setAttribute("visibility", "hidden");
    found.root.classList.remove("active");
    for (const one of curves) one.group.classList.remove("on");
  }
  function near(event) {
    const box = found.root.getBoundingClientRect();
    const ratio = found.root.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    let best = null;
    let least = 44 ** 2;
    for (const item of all) {
      const far = (item.spot.px - x) ** 2 + (item.spot.py - y) ** 2;
      if (far < least) [best, least] = [item, far];
    }
    return best;
  }
  let last = null;
  found.root.addEventListener("pointermove", (event) => {
    const item = near(event);
    if (item !== last) item ? show(item) : hide();
    last = item;
  });
  found.root.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return;
    last = null;
    const focused = all.find((item) => item.node === document.activeElement);
    focused ? show(focused) : hide();
  });
  found.root.addEventListener("pointerdown", (event) => {
    last = near(event);
    last ? show(last) : hide();
  });
  found.root.addEventListener("keydown", (event) => {
    const item = all.find((one) => one.node === document.activeElement);
    if (!item) return;
    if (event.key === "Escape") return hide();
    const next = step(item, event.key);
    if (!next) return;
    event.preventDefault();
    item.node.setAttribute("tabindex", -1);
    next.node.setAttribute("tabindex", 0);
    memory.label = next.one.label;
    memory.column = next.column;
    next.node.focus();
  });
  function step(item, key) {
    const row = all.filter((one) => one.row === item.row);
    if (key === "ArrowRight") return row[item.column + 1];
    if (key === "ArrowLeft") return row[item.column - 1];
    if (key === "Home") return row[0];
    if (key === "End") return row[row.length - 1];
    const turn = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (!turn) return null;
    const other = all.filter((one) => one.row === (item.row + turn + curves.length) % curves.length);
    return other.sort((a, b) => Math.abs(a.spot.px - item.spot.px) - Math.abs(b.spot.px - item.spot.px))[0];
  }
}
