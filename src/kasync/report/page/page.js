"use strict";
// How the page shows what is chosen: charts, their tables for those who do not see them, numbers and settings.

let data = JSON.parse(document.getElementById("data").textContent);
const live = document.querySelector("meta[name=kasync-live]").content;
const state = { experiment: null, task: null, staleness: null, axis: "step", intervals: true, reference: null, hidden: new Set() };
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

function layout(chart, current, traces) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  const x = chart.tasks
    ? { tickvals: current.experiment.tasks.map((_, i) => i), ticktext: current.experiment.tasks.map((task) => task.title.replaceAll(", ", "<br>")) }
    : { title: { text: chart.axis ? AXIS_WORDS[current.axis] : chart.x } };
  const tail = chart.tail ? { range: [0, tailEnd(current.lines)] } : {};
  return {
    margin: { l: 56, r: 12, t: 30, b: 44 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    hovermode: chart.tasks ? "closest" : "x unified", hoverlabel: { bgcolor: colour("--back"), font: { color: colour("--text") } },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", bargap: 0.25,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--mark") },
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
  figure.querySelector("p").textContent = nothing ? chart.none : chart.explains;
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
  target.replaceChildren(element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...body));
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
  table(by("settings"), ["setting", ...lines.map((line) => current.rules.get(line.rule).title)], rows, "Of the first seed; seeds differ in nothing else");
}
