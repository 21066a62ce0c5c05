"use strict";
// What can be pressed and what then happens: rules, light and dark, axes, and newer data where a server has them.

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
  by("about").textContent = [experiment.figures.join(", "), experiment.shows, chosen.note].filter(Boolean).join(" · ");
  by("command").textContent = [experiment.command && `Made by: ${experiment.command}`, experiment.tuned && `Chosen in ${experiment.tuned}`].filter(Boolean).join(". ");
  by("method").textContent = data.method;
  const runs = `${data.finished} of ${data.planned} runs finished`;
  by("status").textContent = live && data.finished < data.planned ? `${runs}, refreshing` : runs;
}

function show() {
  settle();
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
    input.onchange = () => { state.axis = value; draw(); };
    return element("label", {}, input, ` ${text}`);
  });
  const shaded = element("input", { type: "checkbox", id: "intervals", checked: "" });
  shaded.onchange = () => { state.intervals = shaded.checked; draw(); };
  return element("fieldset", { class: "axes" }, element("legend", {}, "Against"), ...choices, element("label", {}, shaded, " bands"));
}

for (const id of ["experiment", "task", "staleness", "reference"]) by(id).onchange = (event) => { state[id] = event.target.value; show(); };
build();
show();

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
