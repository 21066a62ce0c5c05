"use strict";
// What is drawn: each chart is a title, an explanation, its axes, and a function from the lines in view to traces.
// A line is all seeds of one rule on one task. Every trace carries the label of its rule in `meta`.

const AXIS_WORDS = { step: "step", time: "virtual time, seconds", updates: "client updates" };

function look(view, line) {
  const rule = view.rules.get(line.rule);
  return { rule, colour: view.dark ? rule.dark : rule.colour, shown: !view.hidden.has(line.rule) };
}

function curve(view, line, x, y, more = {}) {
  const { rule, colour, shown } = look(view, line);
  return {
    type: "scatter", mode: "lines+markers", x, y, name: rule.title, meta: line.rule, visible: shown,
    line: { color: colour, dash: rule.dash, width: 2, ...more.line },
    marker: { color: colour, symbol: rule.marker, size: 7, maxdisplayed: 8 },
    hovertemplate: "%{y:.4~g}",
  };
}

function interval(view, line, band) {
  const { colour, shown } = look(view, line);
  const known = band.x.map((_, i) => i).filter((i) => band.low[i] !== null);
  const back = [...known].reverse();
  return {
    type: "scatter", mode: "lines", fill: "toself", hoverinfo: "skip", meta: line.rule,
    visible: shown && view.intervals, interval: true,
    x: [...known, ...back].map((i) => band.x[i]),
    y: [...known.map((i) => band.low[i]), ...back.map((i) => band.high[i])],
    line: { width: 0, color: colour }, fillcolor: colour + "26",
  };
}

// A moving average over so many points on each side of each; the ends have fewer neighbours.
function smoothed(values, reach) {
  if (!reach) return values;
  return values.map((value, i) => {
    const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter((each) => each !== null);
    return value === null || !near.length ? value : near.reduce((sum, each) => sum + each, 0) / near.length;
  });
}

function smooth(band, view) {
  if (!view.smoothing || !band) return band;
  const made = { ...band, mean: smoothed(band.mean, view.smoothing) };
  return band.low ? { ...made, low: smoothed(band.low, view.smoothing), high: smoothed(band.high, view.smoothing) } : made;
}

// Curves that lie exactly on each other are drawn the wider the earlier, so that each shows beside the next; their rules.
function coinciding(traces) {
  const groups = new Map();
  for (const trace of traces.filter((each) => !each.interval && each.visible !== false && each.mode !== "markers" && each.line)) {
    const key = JSON.stringify([trace.x, trace.y]);
    groups.set(key, [...(groups.get(key) ?? []), trace]);
  }
  const several = [...groups.values()].filter((group) => group.length > 1);
  for (const group of several) group.forEach((trace, i) => { trace.line.width = 2 + Math.min(4, 10 / (group.length - 1)) * (group.length - 1 - i); trace.opacity = i + 1 < group.length ? 0.6 : 1; });
  return several.map((group) => group.map((trace) => trace.name));
}

function banded(choose) {
  return (view) => view.lines.flatMap((line) => {
    const band = smooth(choose(line, view), view);
    if (!band) return [];
    const mean = curve(view, line, band.x, band.mean);
    if (!band.low) return [mean];
    mean.customdata = band.x.map((_, i) => (band.low[i] === null ? "" : ` (${short(band.low[i])} to ${short(band.high[i])})`));
    mean.hovertemplate = "%{y:.4~g}%{customdata}";
    return [interval(view, line, band), mean];
  });
}

const during = (name) => banded((line) => line.during[name]);

function histogram(name, place) {
  return (view) => view.lines.flatMap((line) => {
    const shares = line.counts[name];
    if (!shares) return [];
    const trace = curve(view, line, shares.map((_, i) => place(i)), shares, { line: { shape: "hvh" } });
    return [trace];
  });
}

function clients(name) {
  return (view) => view.lines.flatMap((line) => {
    const given = line.clients[name];
    return given ? [curve(view, line, given.map((_, i) => (100 * i) / Math.max(1, given.length - 1)), given)] : [];
  });
}

function labels(view) {
  const traces = view.lines.flatMap((line) => {
    const weight = line.labels.label_weight;
    return weight ? [{ ...curve(view, line, weight.map((_, i) => i), weight), mode: "markers" }] : [];
  });
  const first = view.lines.find((line) => line.labels.label_samples);
  if (!first) return traces;
  const samples = first.labels.label_samples;
  const bars = { type: "bar", name: "samples held", x: samples.map((_, i) => i), y: samples, hovertemplate: "%{y:.4~g}" };
  return [{ ...bars, marker: { color: view.dark ? "#3a424d" : "#d5dae1" } }, ...traces];
}

// Final accuracy on every task of the experiment, rules side by side; hollow: printed in the paper.
function overview(view) {
  const { experiment } = view;
  const place = new Map(experiment.tasks.map((task, i) => [task.name, i]));
  return experiment.rules.flatMap((rule, number) => {
    const shift = 0.6 * ((number + 0.5) / experiment.rules.length - 0.5);
    const lines = experiment.lines.filter((l) => l.rule === rule.label && [view.staleness, experiment.any].includes(l.staleness));
    const done = lines.filter((line) => line.numbers.final_accuracy);
    const printed = lines.filter((line) => line.paper.final_accuracy !== null);
    const at = (line) => place.get(line.task) + shift;
    const number_of = (line, i) => line.numbers.final_accuracy[i];
    if (!lines.length) return [];
    const ours = curve(view, lines[0], done.map(at), done.map((line) => number_of(line, 0)));
    ours.mode = "markers";
    ours.marker = { ...ours.marker, size: 9 };
    ours.error_y = { type: "data", array: done.map((line) => number_of(line, 1) ?? 0), color: ours.line.color };
    ours.customdata = done.map((line) => (number_of(line, 1) === null ? "" : ` ± ${short(number_of(line, 1))}`));
    ours.hovertemplate = "%{y:.4f}%{customdata}";
    const theirs = curve(view, lines[0], printed.map(at), printed.map((line) => line.paper.final_accuracy));
    theirs.mode = "markers";
    theirs.name = `${rule.title}, printed`;
    theirs.marker = { ...theirs.marker, size: 13, symbol: `${rule.marker}-open` };
    return [ours, theirs].filter((trace) => trace.x.length);
  });
}

const held = (name) => (view) => {
  const traces = banded((line) => line.during[name])(view);
  const bound = view.lines.find((line) => line.bound);
  if (!bound || !traces.length) return traces;
  const ends = [traces[0].x[0], traces.at(-1).x.at(-1)];
  const least = { type: "scatter", mode: "lines", name: "least by Appendix D", x: ends, y: [bound.bound, bound.bound] };
  return [...traces, { ...least, line: { color: view.dark ? "#ffffff" : "#000000", width: 1.5 }, hovertemplate: "%{y:.4~g}" }];
};

const SHARE = { tickformat: ".3~g", rangemode: "tozero" };
const LOG = { type: "log", tickformat: ".2~g", dtick: 1, range: [-5, 0.2] };
const SECTIONS = [
  { id: "learning", title: "Accuracy", axes: true, large: true, charts: [
    { id: "accuracy", title: "Test accuracy", explains: "Mean over seeds; the band is its 95% interval, of fewer than five seeds their range.", axis: true, y: "accuracy",
      traces: banded((line, view) => line.accuracy[view.axis]) },
    { id: "loss", title: "Test loss", explains: "Cross-entropy on the test set.", axis: true, y: "loss",
      traces: banded((line, view) => line.loss[view.axis]) },
    { id: "overview", title: "Final accuracy on every task", explains: "Mean of the last 10 evaluations, with its interval; hollow: printed in the paper.",
      y: "final accuracy", whole: true, tasks: true, layout: { range: [0, 1.02] }, traces: overview } ] },
  { id: "held-models", title: "Models that clients hold", charts: [
    { id: "held", title: "Mean staleness held", explains: "Of the models all clients hold, counted from 1.", x: "step", y: "staleness", layout: SHARE, traces: held("held") },
    { id: "delivered", title: "Mean staleness delivered", explains: "Of what arrives at each step, counted from 1.", x: "step", y: "staleness", layout: SHARE, traces: held("delivered") } ] },
  { id: "staleness-seen", title: "Staleness", charts: [
    { id: "staleness-time", title: "Mean staleness of deliveries", explains: "Steps between the model a client began with and the one it helps to make.", x: "step", y: "staleness", layout: SHARE, traces: during("staleness") },
    { id: "staleness-count", title: "Deliveries by staleness", explains: "Share of all deliveries, on a logarithmic scale.", x: "staleness", y: "share", layout: LOG, tail: true, traces: histogram("staleness_count", (i) => i) },
    { id: "staleness-weight", title: "Weight by staleness", explains: "Where the rule put its weight: the same deliveries, each counted with its weight.", x: "staleness", y: "share of weight", layout: LOG, tail: true, traces: histogram("staleness_weight", (i) => i) },
    { id: "staleness-max", title: "Largest staleness", explains: "The stalest delivery of each block of steps.", x: "step", y: "staleness", layout: SHARE, traces: during("max_staleness") } ] },
  { id: "rule-did", title: "What the rule did", charts: [
    { id: "selected", title: "Gradients selected", explains: "With a weight above 0, of the k that arrived.", x: "step", y: "gradients", layout: SHARE, traces: during("selected") },
    { id: "effective", title: "Effective number of gradients", explains: "One over the sum of squared weights: k when all weigh the same, 1 when one decides.", x: "step", y: "gradients", layout: SHARE, traces: during("effective") },
    { id: "largest", title: "Largest weight", explains: "Of the heaviest gradient in each step.", x: "step", y: "weight", layout: SHARE, traces: during("largest_weight") },
    { id: "weights", title: "Weights", explains: "Share of all deliveries by weight, on a logarithmic scale.", x: "weight", y: "share", layout: LOG, traces: histogram("weight_count", (i) => (i + 0.5) / 50) },
    { id: "similarity", title: "Similarity to the estimate", explains: "Mean cosine between a gradient and the rule's estimate.", x: "step", y: "cosine", traces: during("similarity") },
    { id: "similarities", title: "Similarities", explains: "Share of all deliveries by cosine.", x: "cosine", y: "share", layout: SHARE, traces: histogram("similarity_count", (i) => (i + 0.5) / 20 - 1) },
    { id: "lr", title: "Learning rate", explains: "As the rule set it.", x: "step", y: "learning rate", layout: { rangemode: "tozero", tickformat: ".3~g" }, traces: during("lr") },
    { id: "stage", title: "Stage", explains: "Mean over seeds: between 1 and 2 while some have changed and others have not.", x: "step", y: "stage", layout: { range: [0.9, 2.1], tickvals: [1, 2] }, traces: during("stage") },
    { id: "dropped", title: "Dropped deliveries", explains: "Unusable ones, in each block of steps.", x: "step", y: "deliveries", layout: SHARE, none: "No delivery was dropped.", traces: during("dropped") } ] },
  { id: "participation", title: "Who took part", charts: [
    { id: "deliveries", title: "Deliveries per client", explains: "As multiples of an equal share, from the busiest client to the idlest.", x: "clients, %", y: "times the average", layout: SHARE, traces: clients("deliveries") },
    { id: "client-weight", title: "Weight per client", explains: "The same, each delivery counted with its weight.", x: "clients, %", y: "times the average", layout: SHARE, traces: clients("client_weight") },
    { id: "labels", title: "Weight per label", explains: "Markers: share of the rule's weight. Bars: share of the samples that clients hold.", x: "label", y: "share", layout: SHARE, traces: labels } ] },
];

function short(value) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(4)));
}

// ---- the page: charts, their tables for those who do not see them, numbers and settings

let data = JSON.parse(document.getElementById("data").textContent);
const live = document.querySelector("meta[name=kasync-live]").content;
const state = { experiment: null, task: null, staleness: null, axis: null, intervals: true, reference: null, smoothing: 0, same: false, hidden: new Set() };
const by = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// ---- what is in view

function view() {
  const experiment = data.experiments.find((each) => each.name === state.experiment);
  const lines = experiment.lines.filter((line) => line.task === state.task && [state.staleness, experiment.any].includes(line.staleness));
  const rules = new Map(experiment.rules.map((rule) => [rule.label, rule]));
  return { ...state, experiment, lines, rules, dark: document.documentElement.classList.contains("dark") };
}

function keep(current, options) {
  return options.includes(current) ? current : options[0];
}

function settle() {
  state.experiment = keep(state.experiment, data.experiments.map((each) => each.name));
  const { experiment } = view();
  state.task = keep(state.task, experiment.tasks.map((task) => task.name));
  state.staleness = keep(state.staleness, experiment.semantics);
  state.reference = keep(state.reference, experiment.rules.map((rule) => rule.label));
  options("experiment", data.experiments.map((each) => [each.name, `${each.title} (${each.name})`]));
  options("task", experiment.tasks.map((task) => [task.name, task.title]));
  options("staleness", experiment.semantics.map((way) => [way, data.semantics[way]]));
  options("reference", experiment.rules.map((rule) => [rule.label, rule.title]));
}

function options(id, pairs) {
  const made = pairs.map(([value, text]) => element("option", value === state[id] ? { value, selected: "" } : { value }, text));
  by(id).replaceChildren(...made);
  by(id).disabled = pairs.length < 2;
}

// ---- drawing

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: true, modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };

const TICKS = [0.001, 0.01, 0.1, 1, 10, 100, 1e3, 1e4, 1e5].flatMap((each) => [each, 2 * each, 5 * each]);

// Whether some rules' runs last more than three times as long as others': then time is drawn in powers of ten.
function unequal(traces) {
  const ends = traces.map((trace) => Math.max(...trace.x));
  return Math.max(...ends) > 3 * Math.min(...ends);
}

function layout(chart, current, traces) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  const x = chart.tasks
    ? { tickvals: current.experiment.tasks.map((_, i) => i), ticktext: current.experiment.tasks.map((task) => task.title.replaceAll(", ", "<br>")) }
    : chart.axis && current.axis === "time" && unequal(traces)
      ? { type: "log", tickvals: TICKS, ticktext: TICKS.map(String), title: { text: `${AXIS_WORDS.time} (logarithmic)` } }
      : { title: { text: chart.axis ? AXIS_WORDS[current.axis] : chart.x } };
  // Rules stand beside each other within a task, not between tasks: every other task has a ground of its own.
  const shapes = !chart.tasks ? [] : current.experiment.tasks.flatMap((_, i) => (i % 2 ? [{ type: "rect", layer: "below", yref: "paper", x0: i - 0.5, x1: i + 0.5, y0: 0, y1: 1, line: { width: 0 }, fillcolor: colour("--line"), opacity: 0.35 }] : []));
  const tail = chart.tail ? { range: [0, tailEnd(current.lines)] } : {};
  return {
    margin: { l: 56, r: 12, t: 30, b: 44 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    hovermode: chart.tasks ? "closest" : "x unified", hoverlabel: { bgcolor: colour("--back"), font: { color: colour("--text") } },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", bargap: 0.25,
    shapes, modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--mark") },
    uirevision: `${current.experiment.name} ${current.task} ${current.staleness} ${chart.axis ? current.axis : ""}`,
    xaxis: { ...axis, ...x, ...tail }, yaxis: { ...axis, title: { text: chart.y }, ...focus(traces), ...chart.layout },
  };
}

// The range of the curves themselves: a wide interval of few seeds must not squeeze them.
function focus(traces) {
  const bands = traces.some((trace) => trace.interval);
  const values = traces.filter((trace) => !trace.interval && trace.visible !== false).flatMap((trace) => trace.y).filter((y) => y !== null);
  if (!bands || !values.length) return {};
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const space = 0.08 * (high - low) || 0.1 * Math.abs(high) || 1;
  return { range: [low >= 0 ? Math.max(0, low - space) : low - space, high + space] };
}

function tailEnd(lines) {
  const ends = lines.map((line) => {
    let sum = 0;
    return (line.counts.staleness_count ?? []).findIndex((share) => (sum += share) > 0.995);
  });
  return Math.max(4, ...ends);
}

function draw() {
  const current = view();
  for (const section of SECTIONS) {
    by(section.id).hidden = false; // what is hidden has no width to draw in
    const shown = section.charts.map((chart) => drawChart(chart, current));
    by(section.id).hidden = !shown.some(Boolean);
  }
}

function drawChart(chart, current) {
  const figure = by(`figure-${chart.id}`);
  const traces = chart.traces(current);
  const visible = traces.filter((trace) => trace.visible !== false && !trace.interval);
  const nothing = chart.none && visible.every((trace) => trace.y.every((y) => !y));
  figure.hidden = !traces.length;
  figure.classList.toggle("empty", Boolean(nothing));
  const together = coinciding(traces).map((names) => ` ${names.join(" and ")} lie on each other.`);
  figure.querySelector("p").textContent = nothing ? chart.none : chart.explains + together.join("");
  if (!traces.length) return false;
  const target = figure.querySelector(".chart");
  if (!nothing) Plotly.react(target, traces, layout(chart, current, traces), CONFIG);
  target.setAttribute("aria-label", `${chart.title}. ${visible.map(inWords).join("; ")}.`);
  fallback(figure, chart, current, visible);
  return true;
}

function inWords(trace) {
  return `${trace.name} from ${short(trace.y[0])} to ${short(trace.y.at(-1))}`;
}

// The numbers of a chart as a table, for those who do not see it; filled when it is opened.
function fallback(figure, chart, current, traces) {
  const details = figure.querySelector("details");
  const x = chart.tasks ? "task" : chart.axis ? AXIS_WORDS[current.axis] : chart.x;
  const fill = () => {
    if (!details.open) return;
    const rows = traces.flatMap((trace) => few(trace.x.length).map((i) => [
      trace.name, chart.tasks ? current.experiment.tasks[Math.round(trace.x[i])].title : short(trace.x[i]),
      short(trace.y[i]) + (trace.customdata?.[i] ?? "")]));
    table(details.querySelector("table"), ["rule", x, chart.y], rows, chart.title);
  };
  details.ontoggle = fill;
  fill();
}

function few(length, most = 12) {
  const count = Math.min(length, most);
  return Array.from({ length: count }, (_, i) => Math.round((i * (length - 1)) / Math.max(1, count - 1)));
}

function table(target, head, rows, caption) {
  const cells = (row) => row.map((cell, i) => (cell instanceof Node ? cell : element(i ? "td" : "th", i ? {} : { scope: "row" }, cell)));
  const body = rows.map((row) => { const made = element("tr", {}, ...cells(row)); if (row.mark) made.className = row.mark; return made; });
  const heads = head.map((text, i) => {
    const press = element("button", { type: "button", class: "sort" }, text);
    press.onclick = () => sort(target, i);
    return element("th", { scope: "col" }, press);
  });
  target.replaceChildren(element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
}

// By the number a cell begins with, else by its text; pressed again, the other way round.
function sort(target, column) {
  const heads = [...target.tHead.rows[0].cells];
  const up = heads[column].getAttribute("aria-sort") === "descending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
  const worth = (row) => {
    const text = row.cells[column].textContent.replace("−", "-");
    const number = Number.parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const order = (one, other) => {
    const [a, b] = [worth(one), worth(other)];
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what has no number comes last, either way
    return (up ? 1 : -1) * (a > b ? 1 : a < b ? -1 : 0);
  };
  const body = target.tBodies[0];
  body.append(...[...body.rows].sort(order));
}

// ---- tables

function numberText(found, digits) {
  if (!found) return "–";
  return `${found[0].toFixed(digits)}${found[1] === null ? "" : ` ± ${found[1].toFixed(digits)}`}`;
}

function difference(current, rule, name) {
  const pair = (one, other) => current.experiment.differences.find((row) => row.task === current.task && row.staleness === current.staleness && row.rule === one && row.minus === other);
  const [found, sign] = pair(rule, current.reference) ? [pair(rule, current.reference)[name], 1] : [pair(current.reference, rule)?.[name], -1];
  if (!found) return "–";
  const mean = sign * found[0];
  const sure = found[1] !== null && Math.abs(mean) > found[1];
  return element("td", sure ? { class: "sure", title: "the interval excludes 0" } : {}, (mean > 0 ? "+" : "") + numberText([mean, found[1]], 4));
}

function drawTables() {
  const current = view();
  const { experiment } = current;
  const lines = current.lines.filter((line) => !current.hidden.has(line.rule));
  const known = experiment.measures.filter((measure) => lines.some((line) => line.numbers[measure.name]));
  const head = ["rule", "seeds"];
  const columns = [];
  for (const measure of known) {
    columns.push((line) => numberText(line.numbers[measure.name], measure.digits));
    head.push(measure.title);
    if (lines.some((line) => (line.paper[measure.name] ?? null) !== null)) {
      columns.push((line) => numberText(line.paper[measure.name] == null ? null : [line.paper[measure.name], null], 4));
      head.push(`${measure.title}, printed`);
    }
    if (experiment.differences.some((row) => measure.name in row)) {
      columns.push((line) => difference(current, line.rule, measure.name));
      head.push(`difference from ${current.rules.get(current.reference).title}`);
    }
  }
  const rows = lines.map((line) => [current.rules.get(line.rule).title, `${line.finished} of ${line.planned}`, ...columns.map((column) => column(line))]);
  const task = experiment.tasks.find((each) => each.name === current.task);
  table(by("numbers"), head, rows, `${task.title}, ${data.semantics[current.staleness]}; bold: the interval of the difference excludes 0`);
  drawSettings(current, lines);
}

function drawSettings(current, lines) {
  const names = [...new Set(lines.flatMap((line) => Object.keys(line.settings)))];
  const rows = names.map((name) => {
    const values = lines.map((line) => line.settings[name] ?? "–");
    const row = [name, ...values];
    if (new Set(values).size > 1) row.mark = "differs";
    return row;
  });
  const differing = rows.filter((row) => row.mark);
  const shown = current.same || lines.length < 2 || !differing.length ? rows : differing;
  by("same-count").textContent = `the ${rows.length - differing.length} that are the same for all`;
  table(by("settings"), ["setting", ...lines.map((line) => current.rules.get(line.rule).title)], shown, "Of the first seed; seeds differ in nothing else");
}

// ---- what can be pressed, and what then happens

function sample(rule, dark) {
  const dash = { solid: "", dash: "6 3", dot: "2 3", dashdot: "7 3 2 3" }[rule.dash];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width: 26, height: 10, "aria-hidden": "true" })) svg.setAttribute(key, value);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const attributes = { x1: 0, x2: 26, y1: 5, y2: 5, stroke: dark ? rule.dark : rule.colour, "stroke-width": 3, "stroke-dasharray": dash };
  for (const [key, value] of Object.entries(attributes)) line.setAttribute(key, value);
  svg.append(line);
  return svg;
}

function drawRules() {
  const current = view();
  const there = new Set(current.lines.map((line) => line.rule));
  const focused = document.activeElement?.dataset?.rule;
  const chips = [...current.rules.values()].filter((rule) => there.has(rule.label)).map((rule) => {
    const line = current.lines.find((each) => each.rule === rule.label);
    const progress = line.finished < line.planned && line.steps ? ` ${Math.floor((100 * line.step) / line.steps)}%` : "";
    const pressed = String(!state.hidden.has(rule.label));
    const chip = element("button", { type: "button", "aria-pressed": pressed, "data-rule": rule.label }, sample(rule, current.dark), rule.title + progress);
    chip.onclick = () => { toggle(rule.label); };
    return chip;
  });
  by("rules").replaceChildren(...chips);
  if (focused) chips.find((chip) => chip.dataset.rule === focused)?.focus();
}

function toggle(label) {
  if (!state.hidden.delete(label)) state.hidden.add(label);
  show();
}

function drawWords() {
  const { experiment, task } = view();
  const chosen = experiment.tasks.find((each) => each.name === task);
  by("title").textContent = experiment.title;
  by("verdict").textContent = experiment.verdicts[task]?.[state.staleness] ?? "";
  by("about").textContent = [experiment.figures.join(", "), experiment.shows, chosen.note].filter(Boolean).join(" · ");
  by("command").textContent = [experiment.command && `Made by: ${experiment.command}`, experiment.tuned && `Chosen in ${experiment.tuned}`].filter(Boolean).join(". ");
  by("method").textContent = data.method;
  const runs = `${data.finished} of ${data.planned} runs finished`;
  by("status").textContent = live && data.finished < data.planned ? `${runs}, refreshing` : runs;
}

// What is chosen stands in the address, so that a link shows the same view.
const KEPT = ["experiment", "task", "staleness", "reference", "axis", "smoothing"];

function remember() {
  const words = new URLSearchParams(KEPT.map((name) => [name, String(state[name])]));
  if (state.hidden.size) words.set("hidden", [...state.hidden].join("|"));
  if (!state.intervals) words.set("bands", "0");
  if (state.same) words.set("same", "1");
  history.replaceState(null, "", `#${words}`);
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const name of KEPT) if (words.has(name)) state[name] = name === "smoothing" ? Number(words.get(name)) || 0 : words.get(name);
  const chosen = data.experiments.find((each) => each.name === state.experiment) ?? data.experiments[0];
  if (!(state.axis in AXIS_WORDS)) state.axis = chosen?.against ?? "step";
  state.hidden = new Set((words.get("hidden") ?? "").split("|").filter(Boolean));
  state.intervals = words.get("bands") !== "0";
  state.same = words.get("same") === "1";
}

function show() {
  settle();
  remember();
  drawWords();
  drawRules();
  draw();
  drawTables();
}

// ---- light and dark

function stored(value) {
  try {
    if (value !== undefined) localStorage.setItem("kasync-theme", value);
    return localStorage.getItem("kasync-theme");
  } catch {
    return null; // a page opened from a file may have no storage
  }
}

function theme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  by("theme").textContent = dark ? "☀ Light" : "☾ Dark";
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
theme(stored() ? stored() === "dark" : prefersDark.matches);
prefersDark.addEventListener("change", (event) => { if (!stored()) { theme(event.matches); show(); } });
by("theme").onclick = () => {
  const dark = !document.documentElement.classList.contains("dark");
  stored(dark ? "dark" : "light");
  theme(dark);
  show();
};

// ---- the page

function build() {
  for (const section of SECTIONS) {
    const charts = section.charts.map((chart) => element("figure", { id: `figure-${chart.id}`, ...(chart.whole ? { class: "whole" } : {}) },
      element("h3", {}, chart.title), element("p", {}, chart.explains),
      element("div", { class: "chart", role: "img" }),
      element("details", {}, element("summary", {}, "As a table"), element("div", { class: "wide" }, element("table")))));
    const parts = [element("h2", { id: `${section.id}-title` }, section.title)];
    if (section.axes) parts.push(axisChoice());
    by("sections").append(element("section", { id: section.id, "aria-labelledby": `${section.id}-title` }, ...parts, element("div", { class: section.large ? "charts large" : "charts" }, ...charts)));
  }
}

function axisChoice() {
  const choices = Object.entries({ step: "steps", time: "virtual time", updates: "client updates" }).map(([value, text]) => {
    const input = element("input", { type: "radio", name: "axis", value, ...(value === state.axis ? { checked: "" } : {}) });
    input.onchange = () => { state.axis = value; remember(); draw(); };
    return element("label", {}, input, ` ${text}`);
  });
  const shaded = element("input", { type: "checkbox", id: "intervals", ...(state.intervals ? { checked: "" } : {}) });
  shaded.onchange = () => { state.intervals = shaded.checked; remember(); draw(); };
  const reach = element("input", { type: "range", id: "smoothing", min: 0, max: 12, value: state.smoothing });
  reach.oninput = () => { state.smoothing = Number(reach.value); remember(); draw(); };
  return element("fieldset", { class: "axes" }, element("legend", {}, "Against"), ...choices, element("label", {}, shaded, " bands"), element("label", {}, "smoothing ", reach));
}

for (const id of ["experiment", "task", "staleness", "reference"]) by(id).onchange = (event) => { state[id] = event.target.value; show(); };
by("same").onchange = (event) => { state.same = event.target.checked; remember(); drawTables(); };
recall();
by("same").checked = state.same;
build();
show();
addEventListener("hashchange", () => { recall(); show(); });

// ---- newer data, where a server has them

let newest = null;
async function refresh() {
  try {
    const answer = await fetch(live, { cache: "no-store", headers: newest ? { "If-None-Match": newest } : {} });
    if (answer.status === 200) {
      newest = answer.headers.get("ETag");
      data = await answer.json();
      show();
    }
  } catch {
    by("status").textContent = "The server has stopped; this is its last word.";
  }
  setTimeout(refresh, 2000);
}
if (live) setTimeout(refresh, 1000);
