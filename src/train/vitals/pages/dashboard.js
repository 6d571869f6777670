// SPDX-License-Identifier: Apache-2.0
// The dashboard of a run under way: asks for data.json (dashboard.c says what is in it) and draws it, again and again.
"use strict";

const page = document.getElementById("page"), root = document.documentElement;
const LOOK_MS = 1000, TIMES_MS = 2000, HIDDEN_MS = 10000;
let shown = null; // what is built once
let program = null, view = null; // program.json, and what draws it

function build(data) {
  const badge = element("span", {class: "badge"}, ""), said = element("p", {}, "");
  const tiles = element("div", {class: "tiles"}), grid = element("div", {class: "grid"});
  page.replaceChildren(element("header", {}, element("h1", {}, data.run), badge, said), tiles, grid);
  const chart = (title, note, options, lines) => chartCard(grid, title, note, options, lines);
  const parts = PARTS.map(([name, label, color]) => ({label, color}));
  const charts = {
    loss: chart("Loss", "nats per scored token", {}),
    tokens_per_s: chart("Tokens/s", "flat is what it should be", {zero: true}),
    shares: chart("Where the time of a step goes", "shares of its wall time", {stacked: true, unit: "share", top: 1}, parts),
    waits: chart("Waiting", "mean of a step", {unit: "s", zero: true}, parts.slice(1, 4)),
    wall_s: chart("Step time", "wall", {unit: "s", zero: true}),
    grad_norm: chart("Gradient norm", "before clipping", {}),
    lag: chart("Steps that are not durable yet", "step minus durable step", {zero: true}),
    lr: chart("Learning rate", "", {zero: true}),
  };
  const wide = (title, note) => {
    const body = element("div", {});
    grid.append(element("section", {class: "card wide"}, element("h2", {}, title), element("p", {class: "note"}, note), body));
    return body;
  };
  const order = {};
  for (const [name, title, text] of PANELS) order[name] = wide(title, text);
  return {badge, said, tiles, charts, ...order, flow: {body: order.flow}, timeline: {body: order.timeline}, memory: {body: order.memory}};
}

const PANELS = [
  ["ranks", "Budget by rank", "a bar for each rank: P50 of the parts of its steps, the thin one P95; this start"],
  ["signs", "Signs", "each window of steps is held against its bounds; two beyond them in a row are a breach"],
  ["timeline", "Snapshots and log", "over steps: what is durable, and since when"],
  ["program", "The step's program", "rows are layers, columns passes; choose a box to see it as a graph, an instruction to see all of it"],
  ["flow", "Gradient flow", "root mean square of the reduced gradient, by layer and step"],
  ["parts", "A step's parts", "quantiles of the newest 1,024 steps; sums of this start"],
  ["memory", "Memory", "as the run was planned"],
];

function curves(data) {
  const points = data.points, step = points.step;
  const line = (name, label, color) => ({label, color, mean: points[name].mean, low: points[name].low, high: points[name].high});
  for (const name of ["loss", "tokens_per_s", "wall_s", "grad_norm", "lr"]) shown.charts[name].show(step, [line(name, name, "var(--main)")]);
  shown.charts.shares.show(step, PARTS.map(([name, label, color]) => ({label, color, mean: points[name].mean.map((value, i) => value / points.wall_s.mean[i])})));
  shown.charts.waits.show(step, PARTS.slice(1, 4).map(([name, label, color]) => ({label, color, mean: points[name].mean})));
  shown.charts.lag.show(step, [{label: "steps", color: "var(--storage)", mean: data.lag}]);
}

function show(data) {
  shown = shown || build(data);
  const now = data.latest, smoothed = data.smoothed;
  shown.said.textContent = [number(data.parameters) + " parameters", `${data.ranks} rank${data.ranks > 1 ? "s" : ""}`, `${data.threads} thread${data.threads > 1 ? "s" : ""}`, data.tier, "isotach " + data.version].join(" · ");
  shown.tiles.replaceChildren(tile(known(now.step) ? String(now.step) : "–", `step of ${data.steps}`), tile(number(now.loss), "loss"), tile(number(smoothed.tokens_per_s), "tokens/s"),
    tile(number(smoothed.mfu, "share"), "of the measured peak (MFU)"), tile(String(now.durable_step), "durable step"), tile(number(smoothed.eta_s, "s"), "left"),
    tile(number(data.memory_bytes) + "B", "memory"), tile(number(now.tokens), "tokens"));
  curves(data);
  showRanks(shown.ranks, data.health, ageOf(data));
  showSigns(shown.signs, data.health, data.breaches, ageOf(data));
  showTimeline(shown.timeline, data);
  showFlow(shown.flow, data.gradients);
  shown.parts.replaceChildren(table(["part", ">last", ">P50", ">P95", ">P99", ">sum"], data.parts.map((part) => [part.name, ...["last", "p50", "p95", "p99", "sum"].map((key) => number(part[key], "s"))])));
  if (program) showMemory(shown.memory, program, data.memory_bytes);
  if (known(now.step)) {
    root.dataset.first = root.dataset.first || now.step;
    root.dataset.step = now.step;
  }
}

async function ask(what) {
  const answer = await fetch(what, {cache: "no-store"});
  if (!answer.ok) throw new Error(`refused (${answer.status})`);
  return answer.json();
}

// The program once, then its times; what fails is asked for again.
async function lookAtTimes() {
  try {
    if (!program) program = await ask("program.json");
    if (shown && !view) view = new ProgramView(shown.program, program);
    if (view && !document.hidden) view.showTimes(await ask("times.json"));
  } catch (error) {
    if (!(error instanceof TypeError) && !String(error.message).startsWith("refused")) throw error;
  } finally {
    setTimeout(lookAtTimes, view && view.times ? TIMES_MS : LOOK_MS);
  }
}

async function look() {
  let word = "live", mood = "good";
  try {
    show(await ask("data.json"));
    root.dataset.looks = Number(root.dataset.looks || 0) + 1;
  } catch (error) {
    [word, mood] = [error instanceof TypeError ? "no answer: the run has ended, or its machine is out of reach" : String(error.message), "bad"];
  }
  if (!shown) page.replaceChildren(element("p", {}, word));
  else {
    shown.badge.textContent = word;
    shown.badge.className = "badge " + mood;
  }
  setTimeout(look, document.hidden ? HIDDEN_MS : LOOK_MS);
}

look();
lookAtTimes();
