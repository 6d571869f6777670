// SPDX-License-Identifier: Apache-2.0
// The dashboard of a run under way: asks for data.json (dashboard.c says what is in it) and draws it, again and again.
"use strict";

const page = document.getElementById("page"), root = document.documentElement;
const LOOK_MS = 1000, HIDDEN_MS = 10000;
let shown = null; // what is built once

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
  return {badge, said, tiles, charts, flow: wide("Gradient flow", "root mean square of the reduced gradient, by layer and step"),
    parts: wide("A step's parts", "quantiles of the newest 1,024 steps; sums of this start"), memory: wide("Memory plan", "as the run was planned"), points: -1};
}

function curves(data) {
  const points = data.points, step = points.step;
  const line = (name, label, color) => ({label, color, mean: points[name].mean, low: points[name].low, high: points[name].high});
  for (const name of ["loss", "tokens_per_s", "wall_s", "grad_norm", "lr"]) shown.charts[name].show(step, [line(name, name, "var(--main)")]);
  shown.charts.shares.show(step, PARTS.map(([name, label, color]) => ({label, color, mean: points[name].mean.map((value, i) => value / points.wall_s.mean[i])})));
  shown.charts.waits.show(step, PARTS.slice(1, 4).map(([name, label, color]) => ({label, color, mean: points[name].mean})));
  shown.charts.lag.show(step, [{label: "steps", color: "var(--storage)", mean: data.lag}]);
}

// Rows are layers, columns looks; the shade is the logarithm between the least and the largest.
function flow(gradients) {
  const all = gradients.rms.flat().filter((value) => known(value) && value > 0).map(Math.log10);
  if (!all.length) return void shown.flow.replaceChildren(element("p", {class: "note"}, "no look yet: the next is at a multiple of 50 steps"));
  const low = Math.min(...all), high = Math.max(...all), width = shown.flow.clientWidth, label = 110, row = 18;
  const svg = shape("svg", {role: "img", "aria-label": "gradient by layer and step", width: "100%", height: gradients.layers.length * row + 20, viewBox: `0 0 ${width} ${gradients.layers.length * row + 20}`});
  const wide = (width - label) / gradients.step.length;
  gradients.layers.forEach((name, layer) => {
    svg.append(shape("text", {x: label - 8, y: layer * row + 13, "text-anchor": "end"}, name));
    gradients.step.forEach((step, look) => {
      const value = gradients.rms[look][layer];
      const part = known(value) && value > 0 ? (Math.log10(value) - low) / (high - low || 1) : 0;
      const box = shape("rect", {x: label + look * wide, y: layer * row, width: wide + 0.5, height: row - 1, fill: "var(--main)", "fill-opacity": 0.08 + 0.92 * part});
      box.append(shape("title", {}, `${name}, step ${step}: ${number(value)}`));
      svg.append(box);
    });
  });
  const last = gradients.layers.length * row + 14;
  svg.append(shape("text", {x: label, y: last}, `step ${gradients.step[0]}`), shape("text", {x: width, y: last, "text-anchor": "end"}, `step ${gradients.step[gradients.step.length - 1]}`));
  shown.flow.replaceChildren(element("div", {class: "chart"}, svg), element("p", {class: "note"}, `light: ${number(10 ** low)}, dark: ${number(10 ** high)}`));
}

function show(data) {
  shown = shown || build(data);
  const now = data.latest, left = (data.steps - now.step) * (data.parts[0].p50 || NaN);
  shown.said.textContent = [number(data.parameters) + " parameters", `${data.ranks} rank${data.ranks > 1 ? "s" : ""}`, `${data.threads} threads`, data.tier, "isotach " + data.version].join(" · ");
  shown.tiles.replaceChildren(tile(known(now.step) ? String(now.step) : "–", `step of ${data.steps}`), tile(number(now.loss), "loss"), tile(number(now.tokens_per_s), "tokens/s"),
    tile(number(now.mfu, "share"), "of the measured peak (MFU)"), tile(String(now.durable_step), "durable step"), tile(number(left, "s"), "left, at the median step"),
    tile(number(data.memory_bytes) + "B", "memory"), tile(number(now.tokens), "tokens"));
  curves(data);
  flow(data.gradients);
  shown.parts.replaceChildren(table(["part", ">last", ">P50", ">P95", ">P99", ">sum"], data.parts.map((part) => [part.name, ...["last", "p50", "p95", "p99", "sum"].map((key) => number(part[key], "s"))])));
  if (!shown.memory.children.length) shown.memory.append(element("div", {class: "scroll"}, element("pre", {}, data.memory)));
  if (known(now.step)) {
    root.dataset.first = root.dataset.first || now.step;
    root.dataset.step = now.step;
  }
}

async function look() {
  let word = "live", mood = "good";
  try {
    const answer = await fetch("data.json", {cache: "no-store"});
    if (!answer.ok) throw new Error(`refused (${answer.status})`);
    show(await answer.json());
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
