"use strict";
const $ = (id) => document.getElementById(id);
const PHASES = ["forward", "backward", "loss scaling", "gradient clipping", "optimizer", "moving average", "unknown"];
const KINDS = { lossy: "lossy: it rounds", exact: "exact: it keeps all bits", needed: "needed" };
const SELECTS = [["phase", "Phase"], ["why", "Why"], ["exactness", "Exactness"], ["removed", "Removed by"]];
const SHOWN = 60; // casts of a group that are listed
const state = { unit: "bytes", frame: null, text: "", integers: false, only: {}, sort: "bytes", down: true, open: new Set() };

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") element.style.cssText = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
};
const count = (number) => number.toLocaleString("en");
const bytes = (number) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (number >= 1024 && power < units.length - 1) { number /= 1024; power += 1; }
  return `${power ? Number(number.toPrecision(3)) : number} ${units[power]}`;
};
const sum = (items, value) => items.reduce((total, item) => total + value(item), 0);
const measure = (casts) => state.unit === "bytes" ? sum(casts, (cast) => cast.bytes) : casts.length;
const many = (number) => `${count(number)} ${number === 1 ? "cast" : "casts"}`;
const told = (number) => state.unit === "bytes" ? bytes(number) : many(number);
const grouped = (items, key) => {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
};
const kind = (cast) => cast.remedy.startsWith("needed") ? "needed" : cast.exactness.startsWith("lossy") ? "lossy" : "exact";
const base = (frame) => `${frame.file.split("/").pop()}:${frame.line}`;
const place = (cast) => cast.place ? base(cast.place) : "";
const alike = (path) => path.split(".").map((part) => /^\d+$/.test(part) ? "*" : part).join(".");
const removed = (cast) => cast.topic || (cast.advised ? "the program" : cast.remedy.startsWith("needed") ? "needed" : "nothing");

async function unpacked(id) {
  const text = $(id).textContent;
  if (!text) return null;
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
let texts = null;
const graphs = () => { texts = texts || unpacked("graphs"); return texts; };

function start(data) {
  const here = data.reports.here, stock = data.reports.stock;
  const counts = (cast) => cast.floating || state.integers;
  const roots = new Set(here.casts.filter((cast) => cast.module).map((cast) => cast.module.split(".")[0]));
  // The root of the model is in the graph of modules; in the table it would be on each line.
  const shortPath = (cast) => {
    const path = alike(cast.module);
    return roots.size === 1 && path.includes(".") ? path.slice(path.indexOf(".") + 1) : path;
  };

  function chosen(cast) {
    if (!counts(cast) || (state.frame && !state.frame.match(cast))) return false;
    for (const [key, value] of Object.entries(state.only)) if (value && field(cast, key) !== value) return false;
    if (!state.text) return true;
    const text = [cast.module, cast.op, place(cast), cast.remedy, cast.topic || "", cast.why, cast.source, cast.target, cast.exactness, cast.parameter, cast.phase];
    return text.join(" ").toLowerCase().includes(state.text);
  }
  const field = (cast, key) => key === "removed" ? removed(cast) : cast[key];

  // What to do.

  function typed(line) {
    const said = make("span", { class: "hidden", role: "status" });
    return make("div", { class: "type" }, make("code", { tabindex: "0" }, line), make("button", { type: "button", "aria-label": `Copy ${line}`, onclick: async (event) => {
      const button = event.currentTarget;
      try { await navigator.clipboard.writeText(line); button.firstChild.textContent = said.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(button.previousSibling); button.firstChild.textContent = said.textContent = "Selected"; }
    } }, "Copy", said));
  }

  function trialOf(advice) {
    const trial = data.trials.find((one) => one.line === advice.line);
    if (!trial) return null;
    const saved = trial.bytes < 0 ? `${bytes(-trial.bytes)} more` : `${bytes(trial.bytes)} fewer`;
    return make("div", { class: "soft tried" }, trial.problem ? `Tried: the step does not run with it: ${trial.problem}` : `Tried: ${many(trial.casts)} fewer, ${saved}.`);
  }

  function drawAdvice() {
    const floating = here.casts.filter((cast) => cast.floating);
    const total = sum(floating, (cast) => cast.bytes);
    const left = floating.filter((cast) => !cast.advised);
    // A setting that no cast carries as its advice, and that removed some when it was tried.
    const alone = data.trials.filter((trial) => !here.advice.some((advice) => advice.line === trial.line));
    if (!here.advice.length && !alone.length) {
      $("todo").replaceChildren(make("p", { class: "panel", id: "nothing" }, floating.length
        ? `No topic and no setting removes any of the ${count(floating.length)} casts: they are needed, or the program rounds before them.`
        : "The step has no casts between floating point dtypes."));
      return;
    }
    const list = make("ol");
    for (const trial of alone) list.append(make("li", { "data-topic": trial.topic },
      make("div", { class: "saves" }, make("h3", {}, trial.topic), make("span", {}, make("b", {}, `saves ${bytes(trial.bytes)}`), `, ${many(trial.casts)}; tried`)),
      typed(trial.line)));
    for (const advice of here.advice.slice(0, 5)) {
      const own = floating.filter((cast) => cast.advised && cast.topic === advice.topic && cast.remedy === advice.remedy);
      const places = [...grouped(own.filter((cast) => cast.place), place)].sort((a, b) => sum(b[1], (cast) => cast.bytes) - sum(a[1], (cast) => cast.bytes));
      const name = advice.topic || "the program";
      const share = total ? `${(100 * advice.bytes / total).toFixed(0)} % of the bytes` : "no bytes";
      const needs = !here.patched && advice.topic && !advice.line.startsWith("castoff install");
      list.append(make("li", { "data-topic": name },
        make("div", { class: "saves" }, make("h3", {}, name), make("span", {}, make("b", {}, `saves ${bytes(advice.bytes)}`), ` ${share}, ${many(advice.casts)}`)),
        make("meter", { min: 0, max: Math.max(total, 1), value: advice.bytes, "aria-label": `${name} saves ${share}` }),
        needs ? typed("castoff install --python PYTHON") : null, typed(advice.line), trialOf(advice),
        make("div", {}, advice.remedy),
        make("div", { class: "saves places" },
          make("span", { class: "soft mono" }, places.slice(0, 4).map((entry) => `${entry[0]} × ${entry[1].length}`).join(", ") + (places.length > 4 ? `, ${places.length - 4} more places` : "")),
          make("button", { type: "button", "aria-label": `Show them: the casts of ${name}`, onclick: () => choose({ label: `${name}: ${advice.remedy}`, match: (cast) => cast.advised && cast.topic === advice.topic && cast.remedy === advice.remedy }, true) }, "Show them"))));
    }
    const more = here.advice.length > 5 ? ` ${here.advice.length - 5} more in the table.` : "";
    $("todo").replaceChildren(list, make("p", { class: "soft", id: "left" }, `Of ${many(floating.length)} and ${bytes(total)}, ${many(left.length)} and ${bytes(sum(left, (cast) => cast.bytes))} are left after all of it.${more}`));
  }

  // Before and after.

  function bars() {
    const found = [];
    const bar = (label, casts) => {
      const groups = grouped(casts, kind);
      for (const name of Object.keys(KINDS)) found.push({ label, kind: name, value: measure(groups.get(name) || []) });
    };
    if (stock) bar("stock wheels", stock.casts.filter(counts));
    const now = here.casts.filter(counts);
    bar(stock ? "castoff's" : "now", now);
    bar("all advice taken", now.filter((cast) => !cast.advised));
    const onTpu = (casts) => casts.filter((cast) => cast.tpu);
    if (stock && stock.casts.some((cast) => cast.tpu !== null)) bar("stock, on the TPU", onTpu(stock.casts.filter(counts)));
    if (now.some((cast) => cast.tpu !== null)) bar(stock ? "castoff's, TPU" : "on the TPU", onTpu(now));
    return found;
  }

  function drawTotals() {
    const found = bars();
    const totals = [...grouped(found, (bar) => bar.label)].map(([label, parts]) => ({ label, value: sum(parts, (part) => part.value) }));
    const width = Math.max($("totals").clientWidth, 240);
    const most = Math.max(1, ...totals.map((bar) => bar.value));
    const unit = state.unit === "bytes" ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
    const ticks = d3.ticks(0, most / unit, Math.max(2, Math.floor(width / 140))).filter((value) => state.unit === "bytes" || value % 1 === 0);
    const chart = Plot.plot({
      width, height: 34 * totals.length + 34, marginLeft: 118, marginRight: 74, marginTop: 2,
      style: { fontSize: "12px", background: "none", color: "var(--ink)" },
      x: { label: null, ticks: ticks.map((value) => value * unit), tickFormat: (value) => state.unit === "bytes" ? bytes(value) : count(value) },
      y: { label: null, domain: totals.map((bar) => bar.label), tickSize: 0 },
      color: { domain: Object.keys(KINDS), range: Object.keys(KINDS).map((name) => `var(--${name})`) },
      marks: [
        Plot.barX(found, { x: "value", y: "label", fill: "kind", stroke: "var(--soft)", strokeWidth: 0.5, title: (bar) => `${bar.label}: ${told(bar.value)} ${bar.kind}` }),
        Plot.text(totals, { x: "value", y: "label", text: (bar) => told(bar.value), textAnchor: "start", dx: 6, fill: "var(--ink)" }),
      ],
    });
    chart.setAttribute("role", "img");
    chart.setAttribute("aria-label", totals.map((bar) => `${bar.label}: ${told(bar.value)}`).join("; "));
    chart.dataset.bars = JSON.stringify(totals);
    $("totals").replaceChildren(chart);
    $("legend").replaceChildren(...Object.entries(KINDS).map(([name, text]) =>
      make("span", {}, make("span", { class: "dot", style: `background:var(--${name})` }), text)));
  }

  function drawBeside() {
    if (!data.compared.length) return;
    const number = (text) => Number(text.replaceAll(",", ""));
    const names = Object.keys(data.titles), before = [...names].reverse(); // stock first, as the bars
    const head = make("tr", {}, make("td"), ...before.map((name) => make("th", { class: "num", scope: "col", style: "white-space:normal" }, data.titles[name])));
    const rows = data.compared.map(([title, ...cells]) => {
      const column = Object.fromEntries(names.map((name, at) => [name, number(cells[at])]));
      const change = column.here < column.stock ? "gone" : column.here > column.stock ? "came" : "";
      return [change, make("tr", {}, make("th", { scope: "row" }, title.trim()), ...before.map((name) => make("td", { class: `num ${name === "here" ? change : ""}` }, cells[names.indexOf(name)])))];
    });
    const table = (some) => make("table", {}, make("thead", {}, head.cloneNode(true)), make("tbody", {}, ...some.map((row) => row[1])));
    const changed = rows.filter((row) => row[0]), same = rows.filter((row) => !row[0]);
    $("beside").replaceChildren(changed.length ? table(changed) : make("p", {}, "castoff's wheels change no number of this step."),
      same.length ? make("details", {}, make("summary", {}, `${same.length} numbers are the same`), table(same)) : "");
  }

  // The modules.

  function tree() {
    const node = (name, match) => ({ name, value: 0, casts: [], children: [], below: new Map(), match });
    const root = node("the step", null);
    const into = (parent, name, cast, match) => {
      if (!parent.below.has(name)) { const child = node(name, match); parent.below.set(name, child); parent.children.push(child); }
      const child = parent.below.get(name);
      child.casts.push(cast);
      return child;
    };
    const casts = here.casts.filter(counts).sort((a, b) => PHASES.indexOf(a.phase) - PHASES.indexOf(b.phase));
    for (const cast of casts) {
      root.casts.push(cast);
      let at = into(root, cast.phase, cast, (other) => other.phase === cast.phase), path = "";
      for (const part of cast.module ? cast.module.split(".") : []) {
        const whole = path = path ? `${path}.${part}` : part;
        at = into(at, part, cast, (other) => other.phase === cast.phase && (other.module === whole || other.module.startsWith(whole + ".")));
      }
      const own = (other) => `${other.op || "unknown"}: ${other.source} → ${other.target}, ${kind(other)}`;
      into(at, own(cast), cast, (other) => other.phase === cast.phase && other.module === cast.module && own(other) === own(cast));
    }
    const finish = (one) => {
      // A chain of single children is one frame.
      while (one !== root && one.children.length === 1 && one.children[0].children.length && one.name !== one.casts[0].phase) {
        const child = one.children[0];
        one.name += `.${child.name}`; one.match = child.match; one.children = child.children;
      }
      one.value = measure(one.casts);
      one.kind = [...grouped(one.casts, kind)].sort((a, b) => measure(b[1]) - measure(a[1]))[0]?.[0] || "needed";
      one.leaf = !one.children.length;
      one.children.forEach(finish);
      delete one.below;
    };
    finish(root);
    return root;
  }

  let flame = null;
  function drawFlame() {
    const root = tree();
    $("flame").replaceChildren();
    if (!root.value) { $("flame").append(make("p", {}, "There is nothing to show.")); return; }
    flame = flamegraph.default().width(Math.max($("flame").clientWidth - 14, 200)).cellHeight(24).inverted(true).transitionDuration(0).minFrameSize(1)
      .setColorMapper((frame) => `var(--${frame.data.kind})`).label(told_frame)
      .onClick((frame) => { choose(frame.depth ? { label: path(frame), match: frame.data.match } : null, false); dress(frame.id); });
    d3.select("#flame").datum(root).call(flame);
    const svg = $("flame").querySelector("svg");
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-labelledby", "modules-title");
    svg.setAttribute("aria-describedby", "modules-help");
    svg.querySelector("text.title")?.remove();
    svg.setAttribute("height", 24 * (d3.select("#flame").datum().height + 1));
    svg.addEventListener("keydown", walk);
    dress(0);
  }
  const path = (frame) => frame.ancestors().reverse().slice(1).map((one) => one.data.name).join(" / ");
  const told_frame = (frame) => `${frame.depth ? path(frame) : "the step"}: ${bytes(sum(frame.data.casts, (cast) => cast.bytes))}, ${many(frame.data.casts.length)}, mostly ${frame.data.kind}`;
  // One frame takes part in the order of Tab; the arrow keys go from it to its neighbours.
  function dress(current) {
    // The library sets widths and names in a transition; a page that is printed at once needs them now.
    d3.selectAll("#flame g.frame").each(function (frame) {
      this.querySelector("rect").setAttribute("width", this.getAttribute("width"));
      this.querySelector("foreignObject div").textContent = frame.data.name;
    });
    d3.selectAll("#flame g.frame").attr("role", "button").attr("aria-label", told_frame).attr("data-id", (frame) => frame.id)
      .attr("tabindex", (frame) => frame.id === current ? 0 : -1).classed("on", (frame) => state.frame !== null && frame.id === current)
      .attr("aria-pressed", (frame) => String(state.frame !== null && frame.id === current));
  }
  function walk(event) {
    const here_ = d3.select(event.target.closest("g.frame")).datum();
    if (!here_) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      flame.zoomTo(here_);
      document.querySelector(`#flame g.frame[data-id="${here_.id}"]`)?.focus();
      return;
    }
    const drawn = (frame) => frame && document.querySelector(`#flame g.frame[data-id="${frame.id}"]`);
    const siblings = (here_.parent ? here_.parent.children : [here_]).filter((frame) => frame.value && drawn(frame));
    const at = siblings.indexOf(here_);
    const next = { ArrowUp: here_.parent, ArrowDown: (here_.children || []).find((frame) => frame.value && drawn(frame)), ArrowLeft: siblings[at - 1], ArrowRight: siblings[at + 1], Home: here_.ancestors().pop() }[event.key];
    if (!drawn(next)) return;
    event.preventDefault();
    event.target.closest("g.frame").setAttribute("tabindex", -1);
    drawn(next).setAttribute("tabindex", 0);
    drawn(next).focus();
  }

  // The table.

  const COLUMNS = [
    ["bytes", "bytes", (group) => count(group.bytes), "num", (group) => group.bytes],
    ["casts", "casts", (group) => count(group.casts.length), "num", (group) => group.casts.length],
    ["where", "where", (group) => [make("span", { class: "mono" }, group.place || "–"), make("br"), make("span", { class: "soft mono" }, group.module)], "", (group) => group.place + group.module],
    ["op", "operation", (group) => [make("span", { class: "mono" }, group.op), make("br"), make("span", { class: "soft" }, group.phase)], "", (group) => PHASES.indexOf(group.phase) * 1e6 + group.first],
    ["dtypes", "from → to", (group) => [make("span", { class: "mono" }, `${group.source} → ${group.target}`), make("br"), make("span", { class: "tag", style: `background:var(--${group.kind})` }, group.exactness)], "", (group) => group.source + group.target + group.exactness],
    ["why", "why", (group) => [group.why], "", (group) => group.why],
    ["removed", "removed by", (group) => [make("b", {}, group.removed)], "", (group) => group.removed],
  ];
  if (here.casts.some((cast) => cast.tpu !== null)) COLUMNS.push(["tpu", "on the TPU", (group) => group.kept ? `keeps ${count(group.kept)}` : "keeps none", "", (group) => group.kept]);

  function groups() {
    const key = (cast) => JSON.stringify([cast.phase, cast.source, cast.target, cast.exactness, cast.why, alike(cast.module), cast.op, place(cast), cast.topic, cast.remedy]);
    return [...grouped(here.casts.filter(chosen), key)].map(([name, casts]) => {
      const one = casts[0];
      return { key: name, casts, bytes: sum(casts, (cast) => cast.bytes), place: place(one), module: shortPath(one), op: one.op || "unknown", phase: one.phase,
        source: one.source, target: one.target, exactness: one.exactness, why: one.why, kind: kind(one), removed: removed(one),
        first: Math.min(...casts.map((cast) => cast.number)), kept: sum(casts, (cast) => cast.tpu || 0) };
    });
  }

  function excerpt(lines, marked, from) {
    const pre = make("pre", { tabindex: "0" });
    lines.forEach((line, at) => pre.append(make("span", marked === at ? { class: "it" } : { class: "soft" }, `${from === null ? "" : `${String(from + at).padStart(5)}  `}${line.length > 400 ? line.slice(0, 400) + " …" : line}`)));
    return pre;
  }

  function source(title, frame) {
    const found = data.sources[`${frame.file}:${frame.line}`];
    return [make("p", {}, make("b", {}, `${title}: `), make("span", { class: "mono" }, `${frame.file}:${frame.line}, in ${frame.function}`)),
      found ? excerpt(found[1], frame.line - found[0], found[0]) : ""];
  }

  async function lowered(cast) {
    const all = await graphs();
    if (all === null) return [make("p", {}, "IR and HLO are left out of this page, which would be too large with them: castoff audit --report FILE has them.")];
    const graph = all[cast.graph];
    const found = [];
    if (cast.line !== null && graph.ir[cast.line] !== undefined) {
      const line = graph.ir[cast.line];
      const names = new Set(line.slice(line.indexOf("=")).match(/%\d+/g) || []);
      const defines = (text) => (text.match(/^\s*(%\d+) =/) || [])[1];
      const uses = (text) => (text.slice(text.indexOf("=")).match(/%\d+/g) || []).includes(cast.node);
      const operands = graph.ir.filter((text) => names.has(defines(text)));
      const users = graph.ir.filter((text) => defines(text) && uses(text));
      found.push(make("p", {}, make("b", {}, "IR"), ` graph ${cast.graph}, line ${cast.line}, between its operands and its users`), excerpt([...operands, line, ...users].map((text) => text.trim()), operands.length, null));
    } else found.push(make("p", {}, "The IR node is not known."));
    const at = graph.hlo.findIndex((line) => line.includes(`${cast.hlo} =`));
    if (at >= 0) {
      const from = Math.max(at - 3, 0);
      found.push(make("p", {}, make("b", {}, "HLO"), ` line ${at + 1}`), excerpt(graph.hlo.slice(from, at + 4).map((text) => text.trim()), at - from, null));
    }
    return found;
  }

  function detail(group) {
    const one = group.casts[0];
    const line = one.advised ? here.advice.find((advice) => advice.topic === one.topic && advice.remedy === one.remedy)?.line : null;
    const cell = make("td", { colspan: COLUMNS.length, role: "cell" }, make("p", {}, make("b", {}, "What to do: "), one.remedy), line ? typed(line) : "");
    if (one.place) cell.append(...source("Where", one.place));
    if (one.program && (!one.place || one.program.file !== one.place.file || one.program.line !== one.place.line)) cell.append(...source("Called from", one.program));
    if (one.implicit) cell.append(make("p", {}, make("b", {}, "The engine's record: "), `returned by ${one.implicit.produced_by || "the root"}, wanted by ${one.implicit.demanded_by}`));
    for (const cast of group.casts.slice(0, SHOWN)) {
      const about = [`#${cast.number}`, `${cast.source} → ${cast.target} [${cast.shape.join(",")}]`, bytes(cast.bytes), cast.module, cast.parameter && `parameter ${cast.parameter}`, cast.node && `IR ${cast.node}`, cast.hlo && `HLO ${cast.hlo}`];
      const box = make("details", { "data-cast": cast.number }, make("summary", { class: "mono" }, about.filter(Boolean).join("  ")));
      box.addEventListener("toggle", async () => { if (box.open && box.children.length === 1) box.append(...await lowered(cast)); });
      cell.append(box);
    }
    if (group.casts.length > SHOWN) cell.append(make("p", { class: "soft" }, `and ${count(group.casts.length - SHOWN)} more`));
    return make("tr", { class: "detail", role: "row" }, cell);
  }

  function drawTable(focus) {
    const head = make("tr", { role: "row" });
    for (const [name, title, , style] of COLUMNS) head.append(make("th", { class: style, role: "columnheader", scope: "col", "data-sort": name, "aria-sort": state.sort === name ? (state.down ? "descending" : "ascending") : "none" },
      make("button", { type: "button", onclick: () => {
        if (state.sort === name) state.down = !state.down; else { state.sort = name; state.down = ["bytes", "casts", "tpu"].includes(name); }
        drawTable(`th[data-sort="${name}"] button`);
      } }, title)));
    $("casts").tHead.replaceChildren(head);
    const value = COLUMNS.find((column) => column[0] === state.sort)[4];
    const all = groups().sort((a, b) => {
      const x = value(a), y = value(b);
      return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1) || a.first - b.first;
    });
    const rows = [];
    for (const group of all) {
      const open = state.open.has(group.key);
      const toggle = (event) => {
        if (getSelection().toString() && event.type === "click" && !event.target.closest(".fold")) return;
        if (open) state.open.delete(group.key); else state.open.add(group.key);
        drawTable(`tr[data-first="${group.first}"] .fold`);
      };
      const cells = COLUMNS.map(([, title, show, style]) => make("td", { class: style, role: "cell", "data-label": title }, make("span", {}, ...[show(group)].flat())));
      cells[0].lastChild.prepend(make("button", { type: "button", class: "fold", "aria-expanded": String(open), "aria-label": `Details of ${group.op} ${group.source} to ${group.target} at ${group.place || "an unknown place"}` }, open ? "▾" : "▸"));
      rows.push(make("tr", { class: `row ${open ? "open" : ""}`, role: "row", "data-first": group.first, "data-numbers": group.casts.map((cast) => cast.number).join(" "), onclick: toggle }, ...cells));
      if (open) rows.push(detail(group));
    }
    $("casts").tBodies[0].replaceChildren(...rows);
    const casts = all.flatMap((group) => group.casts);
    $("shown").textContent = `${many(casts.length)} in ${count(all.length)} ${all.length === 1 ? "row" : "rows"}, ${bytes(sum(casts, (cast) => cast.bytes))}${state.frame ? `, of ${state.frame.label}` : ""}`;
    if (focus) $("casts").querySelector(focus)?.focus();
  }

  function choose(frame, scroll) {
    state.frame = frame;
    drawTable();
    if (scroll) { $("casts-title").scrollIntoView(); $("clear").focus({ preventScroll: true }); }
  }

  function drawSelects() {
    for (const [key, title] of SELECTS) {
      const values = [...grouped(here.casts, (cast) => field(cast, key)).keys()].sort();
      $("clear").before(make("label", {}, title, make("select", { "data-key": key, onchange: (event) => { state.only[key] = event.target.value; drawTable(); } },
        make("option", { value: "" }, "all"), ...values.map((value) => make("option", { value }, value)))));
    }
  }

  const drawCharts = () => { drawTotals(); drawFlame(); };
  $("program").textContent = data.program;
  $("versions").textContent = `torch ${here.versions.torch}, torch_xla ${here.versions.torch_xla}, ${here.graphs === 1 ? "one graph" : `${here.graphs} graphs`}, ${count(here.accumulations)} narrow accumulations`;
  document.title = `castoff audit: ${data.program}`;
  $("licences").textContent = $("licence-texts").textContent.trim();
  $("search").addEventListener("input", (event) => { state.text = event.target.value.toLowerCase(); drawTable(); });
  $("integers").addEventListener("change", (event) => { state.integers = event.target.checked; state.frame = null; drawCharts(); drawTable(); });
  $("unit").addEventListener("change", (event) => { state.unit = event.target.value; state.frame = null; drawCharts(); drawTable(); });
  $("clear").addEventListener("click", () => {
    Object.assign(state, { frame: null, text: "", only: {} });
    $("search").value = "";
    document.querySelectorAll("#tools select").forEach((select) => { select.value = ""; });
    drawFlame(); drawTable();
  });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; state.frame = null; drawCharts(); drawTable(); } });
  drawAdvice(); drawBeside(); drawSelects(); drawCharts(); drawTable();
}

const fail = (error) => {
  document.querySelector("main").prepend(make("p", { class: "came", role: "alert" }, `The report cannot be shown: ${error}. It needs a browser of 2023 or later.`));
  throw error;
};
const ready = unpacked("report").then(start).then(() => { document.body.dataset.ready = "yes"; }).catch(fail);
