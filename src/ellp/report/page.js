// The page: what its controls choose is drawn from the numbers embedded in it, by the functions of chart.js.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// ---- the trade-off ----

const axes = {
  bytes: {
    of: (point) => point.share,
    scale: logarithm,
    domain: (values) => [Math.max(1, ...values), Math.min(0.5, ...values) / 1.06],
    ticks(low, high) {
      const halves = [];
      for (let half = 1; half >= Math.min(low, high); half /= 2) halves.push(half);
      return halves.slice(0, 24);
    },
    text: (tick) => (tick === 1 ? "1" : `1/${Math.round(1 / tick)}`),
    title: "bytes of the layer over float16 dense, smaller to the right",
    missing: "no size is known",
  },
  rate: {
    of: (point) => point.rate,
    scale: even,
    domain: () => [0, 1],
    ticks: () => [0, 0.2, 0.4, 0.6, 0.8, 1],
    text: (tick) => percent(tick, 0),
    title: "parameters of the layer removed",
    missing: "no parameters are removed",
  },
};

const state = { panel: 0, axis: "bytes", task: -1, scale: "even", bands: true, hidden: [] };
const memory = { label: null, column: 0 };
const panel = () => data.panels[state.panel];
const whole = (task) => (task < 0 ? panel() : panel().tasks[task]); // dense score and unit of a task, or of the average
const value = (point, task) => (task < 0 ? point.average : point.tasks[task]);

// The visible curves of a task; settings without a place on the axis, or without a finite drop, are counted.
function visible(task) {
  const axis = axes[state.axis];
  const found = { curves: [], missing: new Set(), endless: 0, partial: 0 };
  panel().series.forEach((series, number) => {
    if (state.hidden[state.panel].has(number)) return;
    const spots = [];
    for (const point of series.points) {
      const [x, drop] = [axis.of(point), value(point, task)];
      if (x === null || (state.axis === "bytes" && !(x > 0))) found.missing.add(series.label);
      else if (!drop) found.partial++;
      else if (!finite(drop.slice(0, 3))) found.endless++;
      else spots.push({ x, y: drop[0], low: drop[1], high: drop[2], point, drop });
    }
    const order = state.axis === "bytes" ? (a, b) => b.x - a.x : (a, b) => a.x - b.x;
    if (spots.length) found.curves.push({ label: series.label, look: series.look, spots: spots.sort(order) });
  });
  return found;
}

function vertical(curves, count) {
  const scale = state.scale === "even" ? even : small;
  const values = curves.flatMap((one) => one.spots.flatMap((spot) => (state.bands ? [spot.low, spot.high] : [spot.y])));
  const [low, high] = [Math.min(0, ...values), Math.max(1, ...values)];
  return { scale, domain: [low, high + (high - low) * 0.04], ticks: scale.ticks(low, high, count), text: short };
}

function horizontal(curves) {
  const axis = axes[state.axis];
  const domain = axis.domain(curves.flatMap((one) => one.spots.map((spot) => spot.x)));
  return { scale: axis.scale, domain, ticks: axis.ticks(...domain), text: axis.text };
}

function describe(task) {
  const { dense, unit } = whole(task);
  return (one, { point, drop }) => {
    const rank = point.rank === null ? "" : ` · rank ${point.rank}`;
    const score = task < 0 ? (dense === null ? null : unit === "points" ? dense - drop[0] : dense + drop[0]) : drop[3];
    return [
      one.label,
      `${point.at}${rank}`,
      unit === "points" ? `${points(drop[0])} points lost` : `perplexity ${drop[0] < 0 ? "" : "+"}${points(drop[0])}`,
      `95 % interval ${points(drop[1])} to ${points(drop[2])}`,
      score === null || dense === null ? null : `${unit === "points" ? "score" : unit} ${points(score)} ${unit === "points" ? "of" : "from"} ${points(dense)} dense`,
      `${fraction(point.share)} of the bytes (${percent(point.share)}, ${size(point.bytes)})`,
      point.rate === null ? null : `${percent(point.rate, 0)} of the parameters removed`,
      typeof drop[4] === "number" ? `${drop[4]} answers changed` : null,
    ].filter((text) => text !== null);
  };
}

function drawMain() {
  const host = byId("plot");
  const held = host.contains(document.activeElement);
  const { curves, missing, endless, partial } = visible(state.task);
  const width = Math.max(300, host.clientWidth || 680);
  const narrow = width < 560;
  const height = Math.round(Math.min(460, Math.max(320, width * 0.52)));
  const longest = Math.max(0, ...curves.map((one) => one.label.length));
  const letters = narrow ? 13 : 24;
  const margin = { left: 42, right: Math.min(longest, letters) * (narrow ? 6.3 : 7.2) + 20, top: 26, bottom: 44 };
  const label = state.task < 0 ? "average" : panel().tasks[state.task].label;
  const title = `Drop in points of ${label} against ${state.axis}. Arrow keys walk along and between the curves.`;
  const found = frame({
    width, height, margin, apart: 34, x: { ...horizontal(curves), title: narrow ? axes[state.axis].title.split(",")[0] : axes[state.axis].title },
    y: { ...vertical(curves, 6), title: whole(state.task).unit === "points" ? "points lost" : "perplexity added" }, attributes: { role: "group", "aria-label": title },
  });
  const drawn = curves.map((one) => curve(found, one, state.bands));
  guide(found, margin, narrow, drawn);
  names(found, drawn, height, letters);
  explore(host, found, drawn, describe(state.task), memory);
  circle(found, drawn);
  host.replaceChildren(found.root);
  if (held) host.querySelector('.point[tabindex="0"]')?.focus();
  const notes = narrow ? [`Dotted line: ${+(100 * panel().goal).toPrecision(4)} % of the score.`] : [];
  if (!curves.length) notes.push("Nothing to draw: no visible method has a finite value here.");
  if (missing.size) notes.push(`Not on this axis, as ${axes[state.axis].missing}: ${[...missing].join(", ")}.`);
  if (endless) notes.push(`${endless} not finite and not drawn.`);
  if (partial) notes.push(`${partial} not measured${state.task < 0 ? " on every task" : ""}.`);
  byId("plot-note").textContent = notes.join(" ");
}

function guide(found, margin, narrow, drawn) {
  const { dense, unit } = whole(state.task);
  if (!(dense > 0) || unit !== "points") return;
  const y = found.toY((1 - panel().goal) * dense);
  if (!(y > margin.top)) return;
  const text = `${+(100 * panel().goal).toPrecision(4)} % of the score`;
  const best = drawn.flatMap((one) => one.spots).find((spot) => spot.point.best);
  const left = best && best.px > (margin.left + found.right) / 2; // away from the word at the recommended point
  found.back.append(svg("line", { class: "goal", x1: margin.left, x2: found.right, y1: y, y2: y }));
  if (narrow) return;
  const place = left ? { x: margin.left + 6, "text-anchor": "start" } : { x: found.right, "text-anchor": "end" };
  found.root.append(svg("text", { class: "halo", y: y - 5, "aria-hidden": "true", ...place }, text));
}

function circle(found, drawn) {
  if (state.task >= 0) return;
  for (const one of drawn) {
    for (const spot of one.spots.filter((spot) => spot.point.best)) {
      found.root.append(
        svg("circle", { class: "best", cx: spot.px, cy: spot.py, r: 9, "aria-hidden": "true" }),
        svg("text", { class: "halo", x: spot.px, y: spot.py - 15, "text-anchor": "middle", "aria-hidden": "true" }, "recommended"),
      );
    }
  }
}

function drawMinis() {
  const tasks = panel().tasks;
  const shown = tasks.length > 1;
  byId("minis-title").hidden = !shown;
  if (!shown) return byId("minis").replaceChildren();
  const buttons = tasks.map((task, number) => {
    const { curves } = visible(number);
    const margin = { left: 30, right: 10, top: 8, bottom: 22 };
    const found = frame({
      width: byId("minis").clientWidth < 560 ? 190 : 260, height: 150, margin, apart: 40, x: horizontal(curves), y: vertical(curves, 3), attributes: { "aria-hidden": "true" },
    });
    for (const one of curves) curve(found, one, state.bands);
    const dense = task.dense === null ? "" : `dense ${points(task.dense, 1)}`;
    const button = html("button", { type: "button", "aria-pressed": String(number === state.task) },
      html("strong", {}, task.label), html("span", { class: "quiet" }, dense), found.root);
    button.addEventListener("click", () => {
      byId("task").querySelector(`input[value="${number === state.task && shown ? -1 : number}"]`).click();
      byId("minis").children[number].focus();
    });
    return button;
  });
  byId("minis").replaceChildren(...buttons);
}

function redraw() {
  drawMain();
  drawMinis();
}

function chooser(host, name, options, current, changed) {
  for (const old of host.querySelectorAll("label")) old.remove();
  for (const [key, text] of options) {
    const input = html("input", { type: "radio", name, value: key, checked: key === current });
    input.addEventListener("change", () => changed(key));
    host.append(html("label", {}, input, html("span", {}, text)));
  }
}

function setUp() {
  const { tasks, series } = panel();
  state.task = tasks.length > 1 ? -1 : 0;
  const options = [...(tasks.length > 1 ? [[-1, "average"]] : []), ...tasks.map((task, number) => [number, task.label])];
  chooser(byId("task"), "task", options, state.task, (key) => {
    state.task = key;
    redraw();
  });
  const host = byId("methods");
  for (const old of host.querySelectorAll("label, button")) old.remove();
  const boxes = series.map((one, number) => {
    const hidden = state.hidden[state.panel];
    const input = html("input", { type: "checkbox", checked: !hidden.has(number) });
    input.addEventListener("change", () => {
      input.checked ? hidden.delete(number) : hidden.add(number);
      redraw();
    });
    const swatch = svg("svg", { viewBox: "0 0 28 12", class: `c${one.look[0]}`, "aria-hidden": "true" },
      svg("path", { class: "line", d: "M1 6H27", "stroke-width": one.look[3], "stroke-dasharray": DASHES[one.look[1]] }),
      svg("path", { class: "point", d: mark(one.look, 4), transform: "translate(14 6)" }));
    host.append(html("label", {}, input, html("span", {}, swatch, one.label)));
    return input;
  });
  if (boxes.length > 3) {
    for (const [text, on] of [["all", true], ["none", false]]) {
      const button = html("button", { type: "button", "aria-label": `${text} of the methods` }, text);
      button.addEventListener("click", () => {
        boxes.forEach((box, number) => {
          box.checked = on;
          on ? state.hidden[state.panel].delete(number) : state.hidden[state.panel].add(number);
        });
        redraw();
      });
      host.append(button);
    }
  }
  redraw();
}

function listen(id, changed) {
  byId(id).addEventListener("change", (event) => {
    changed(event.target);
    redraw();
  });
}

function tradeOff() {
  if (!byId("chart") || !data.panels.some((one) => one.series.length)) return;
  state.panel = data.panels.findIndex((one) => one.series.length);
  state.hidden = data.panels.map((one) => new Set(one.series.flatMap((series, number) => (series.shown ? [] : [number]))));
  byId("chart").hidden = false;
  const select = byId("panel");
  data.panels.forEach((one, number) => one.series.length && select.append(html("option", { value: number }, one.name)));
  byId("pick").hidden = select.options.length < 2;
  select.addEventListener("change", () => {
    state.panel = Number(select.value);
    setUp();
  });
  listen("axis", (input) => (state.axis = input.value));
  listen("scale", (input) => (state.scale = input.value));
  listen("bands", (input) => (state.bands = input.checked));
  setUp();
  let width = byId("plot").clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(byId("plot").clientWidth - width) < 4) return;
    width = byId("plot").clientWidth;
    requestAnimationFrame(drawMain);
  }).observe(byId("plot"));
}

// ---- the layers' spectra ----

const LOOKS = [[1, "solid", "circle", 1.8], [0, "dash", "square", 1.8], [3, "dot", "diamond", 1.8], [4, "dashdot", "up", 1.8]];

function drawSpectrum(details) {
  const host = details.querySelector(".spectrum");
  if (!host || !details.open || !host.clientWidth) return;
  const layer = data.layers[Number(details.dataset.layer)];
  const curves = Object.entries(layer.curves).map(([label, pairs], number) => ({
    label, look: LOOKS[number % LOOKS.length], spots: pairs.map(([x, y]) => ({ x, y })),
  }));
  const all = curves.flatMap((one) => one.spots);
  const least = Math.max(1e-9, Math.min(...all.map((spot) => spot.y)));
  const decades = [];
  for (let tick = 1; tick >= least / 10; tick /= 10) decades.push(+tick.toPrecision(1));
  const bottom = least < 0.05 ? least * 0.9 : decades[decades.length - 1] < least ? Math.max(least * 0.7, 0.01) : least * 0.9;
  const ticks = least < 0.05 ? decades : [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01].filter((tick) => tick >= bottom);
  const widest = Math.max(...all.map((spot) => spot.x));
  const width = Math.max(280, host.clientWidth);
  const found = frame({
    width, height: 250, margin: { left: 46, right: 54, top: 10, bottom: 44 }, apart: 34,
    x: { scale: even, domain: [0, widest], ticks: nice(0, widest, 6), text: String, title: "rank" },
    y: { scale: logarithm, domain: [bottom, 1], ticks: ticks.filter((tick) => tick >= bottom), text: String },
    attributes: { role: "img", "aria-label": `Spectrum: ${curves.map((one) => `${one.label} falls to ${short(one.spots[one.spots.length - 1].y)} of its longest axis`).join("; ")}` },
  });
  for (const rank of layer.ranks) {
    const x = found.toX(rank);
    found.back.append(svg("line", { class: "tried", x1: x, x2: x, y1: found.bottom - 7, y2: found.bottom }));
  }
  names(found, curves.map((one) => curve(found, one, false)), 250, 8);
  host.replaceChildren(found.root);
}

// ---- the page ----

function remembered() {
  try {
    return localStorage.getItem("ellp-theme");
  } catch {
    return null;
  }
}

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("ellp-theme", name);
  } catch {
    // a page from a file may not be allowed to remember
  }
}

for (const input of byId("theme").querySelectorAll("input")) {
  if (input.value === remembered()) {
    input.checked = true;
    theme(input.value);
  }
  input.addEventListener("change", () => theme(input.value));
}
tradeOff();
const layers = [...document.querySelectorAll("details.layer")];
for (const details of layers) {
  drawSpectrum(details);
  details.addEventListener("toggle", () => drawSpectrum(details));
}
window.addEventListener("resize", () => layers.forEach(drawSpectrum));
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => (details.open = true)));
