"use strict";
// Draws the curves of the page from the numbers embedded in it. No text is ever read as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);

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

  // ---- the trade-off ----

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
      const button = html("button", { type: "button", "aria-pressed": String(number === state.task), "aria-label": `Show ${task.label} above` },
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
        const button = html("button", { type: "button", "aria-label": `${on ? "Show" : "Hide"} every method` }, text);
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
})();
