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

function banded(choose) {
  return (view) => view.lines.flatMap((line) => {
    const band = choose(line, view);
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
      y: "final accuracy", whole: true, tasks: true, traces: overview } ] },
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
