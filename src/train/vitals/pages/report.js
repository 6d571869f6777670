// SPDX-License-Identifier: Apache-2.0
// report.html: what a run was like, from the JSON that stands in the page (report_page.c says what is in it).
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const points = data.points, step = points.step;
const curve = (name, label, color) => ({label, color, mean: points[name].mean, low: points[name].low, high: points[name].high});

function head() {
  const mood = {done: "good", failed: "bad", lost: "bad"}[data.verdict] || "";
  const report = data.report || {};
  page.append(element("header", {}, element("h1", {}, data.run), element("span", {class: "badge " + mood}, data.verdict),
    element("p", {}, [known(report.parameters) ? number(report.parameters) + " parameters" : "", `${plural(data.steps, "step")} on record`,
      data.began ? "from " + when(data.began) + " to " + when(data.ended) : "", "isotach " + data.version].filter(Boolean).join(" · "))));
  const tiles = element("div", {class: "tiles"});
  const put = (value, unit, label) => { if (known(value)) tiles.append(tile(number(value, unit), label)); };
  if (known(data.loss)) put(data.loss, "", "loss at the end");
  else tiles.append(tile("not finite", "loss at the end" + (known(report.last_finite_loss) ? `; the last finite one: ${number(report.last_finite_loss, "")}` : "")));
  put(report.bits_per_byte, "", "bits per byte, held out");
  put(data.tokens, "", "tokens");
  put(data.tokens_per_s, "", "tokens/s over all steps");
  put(report.mfu, "share", "of the measured peak (MFU)" + (known(report.first_peak_gflops) ? `, ${number(report.peak_gflops, "")} GFLOP/s; at the first step it was taken for ${number(report.first_peak_gflops, "")}` : ""));
  put(data.wall_s, "s", "in steps");
  page.append(tiles);
}

const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const when = (time) => new Date(time * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";

// What the run says of itself, in the words of its verdict on the terminal and in report.json.
const judged = data.judged, budget = judged.budget || {};

function flatness() {
  if (!judged.flatness) return;
  const f = judged.flatness, wall = budget.wall_s, tiles = element("div", {class: "tiles"});
  const put = (value, unit, label, good) => { if (known(value)) tiles.append(tile(number(value, unit), label, good === undefined ? "" : good ? "good" : "bad")); };
  tiles.append(tile(judged.level ? "level" : "not level", "the run's verdict", judged.level ? "good" : "bad"));
  put(f.p99_over_median, "", "p99 / median step time (bound: ≤ 1.05)", f.p99_over_median <= 1.05);
  put(f.last_over_first_tenth, "", "last / first tenth, tokens/s (bound: ≥ 0.99)", f.last_over_first_tenth >= 0.99);
  put(judged.effective_training_share, "share", "of the time was useful compute");
  put(wall.p50, "s", "median step");
  put(wall.p95, "s", "step, P95");
  put(wall.p99, "s", "step, P99");
  put(judged.steps_run_again, "", "steps run again");
  page.append(tiles);
}

const TITLES = {tokens: "Tokens read", preempted_s: "Processor taken away", unaccounted_s: "Not accounted for", data_load_latency: "Wait for a batch, P95", allreduce_wait: "Wait in reductions, mean",
  allreduce_wait_std: "Wait in reductions, deviation", checkpoint_bandwidth: "Checkpoint bandwidth", durable_step: "Durable step", ring_depth: "Batches ready", incarnation: "Start", refused: "Refused steps", starved: "Late batches"};
const sentence = (name) => name[0].toUpperCase() + name.slice(1).replace(/_/g, " ");

function curves() {
  const grid = element("div", {class: "grid"});
  page.append(grid);
  const one = (name, title, note, options) => {
    if (!points[name] || !points[name].mean.some(known)) return;
    const lines = [curve(name, title, "var(--main)")];
    chartCard(grid, title, note, options, lines).show(step, lines);
  };
  const band = data.steps_per_point > 1 ? `; each point is ${data.steps_per_point} steps, the band their extremes` : "";
  one("loss", "Loss", "nats per scored token" + band, {});
  one("tokens_per_s", "Tokens/s", "flat is what it should be" + band, {zero: true});
  const shares = PARTS.map(([name, label, color]) => ({label, color, mean: points[name].mean.map((value, i) => value / points.wall_s.mean[i])}));
  chartCard(grid, "Where the time of a step goes", "shares of its wall time", {stacked: true, unit: "share", top: 1}, shares).show(step, shares);
  const waits = PARTS.slice(1, 4).map(([name, label, color]) => ({...curve(name, label, color), low: undefined, high: undefined}));
  chartCard(grid, "Waiting", "mean of a step", {unit: "s", zero: true}, waits).show(step, waits);
  const worst = PARTS.slice(1, 4).map(([name, label, color]) => ({label, color, mean: points[name].high || points[name].mean}));
  if (data.steps_per_point > 1) chartCard(grid, "Longest waits", "of any step of a point", {unit: "s", zero: true}, worst).show(step, worst);
  one("wall_s", "Step time", "wall" + band, {unit: "s", zero: true});
  one("grad_norm", "Gradient norm", "before clipping" + band, {});
  one("lr", "Learning rate", "", {zero: true});
  one("mfu", "MFU", "useful FLOP per second over the peak measured until then" + band, {unit: "share", zero: true});
  const drawn = new Set(["step", "loss", "tokens_per_s", "wall_s", "grad_norm", "lr", "mfu", ...PARTS.map((part) => part[0])]);
  if (data.starts.every((start) => start.ranks <= 1)) for (const name of ["allreduce_wait", "allreduce_wait_std"]) drawn.add(name);
  for (const [name, meaning] of Object.entries(data.names)) // what later versions count too
    if (!drawn.has(name)) one(name, TITLES[name] || sentence(name), `${meaning.help} (${name})`, {unit: meaning.unit === "s" ? "s" : "", zero: true});
}

function card(title, note, ...content) {
  page.querySelector(".grid").append(element("section", {class: "card wide"}, element("h2", {}, title), note ? element("p", {class: "note"}, note) : null, ...content));
}

const CAUSE_PARTS = {source: "data_wait_s", preempted: "compute_s", disk: "storage_wait_s", other: "other_s", rank: "reduce_wait_s"};

function causes() {
  if (!judged.causes) return;
  const most = Math.max(...judged.causes.map((cause) => cause.seconds), 1e-12);
  const rows = judged.causes.map((cause) => {
    const color = (PARTS.find((part) => part[0] === CAUSE_PARTS[cause.cause]) || [0, 0, "var(--main)"])[2];
    const bar = element("td", {class: "stretch"}, element("div", {class: "bar", style: `width:${(100 * cause.seconds) / most}%;background:${color}`}));
    return [cause.cause, number(cause.seconds, "s"), number(cause.share, "share"), bar, cause.detail + (cause.host && data.starts.some((start) => start.ranks > 1) ? ` (rank ${cause.rank} on ${cause.host})` : "")];
  });
  card("Where the rest went", "shares of the whole time: steps, those that were run again, and the beginnings of starts; causes overlap: a host that steals makes others wait",
    rows.length ? stacked(["cause", ">time", ">share", "", "what"], rows) : element("p", {}, "nothing"));
  const breaches = Object.entries(judged.breaches).map(([sign, count]) => [sign, String(count)]);
  card("Signs out of bounds", "how often each began to be", table(["sign", ">breaches"], breaches));
}

function ranks() {
  if (!judged.ranks || judged.ranks.length < 2) return;
  const names = PARTS.map((part) => part[0]);
  card("Ranks", "P50 / P95 of the parts of a step, of the last start", table(["rank", "host", ">steps", ">step", ...PARTS.map((part) => ">" + part[1])],
    judged.ranks.map((rank) => [String(rank.rank), rank.host, String(rank.steps), ...["wall_s", ...names].map((name) => `${number(rank[name].p50, "s")} / ${number(rank[name].p95, "s")}`)])));
}

function parts() {
  const rows = Object.entries(budget).map(([name, part]) => [name, ...["mean", "std", "p50", "p95", "p99", "most"].map((key) => number(part[key], "s")), number(part.sum, "s")]);
  if (rows.length) card("A step's parts", "over all steps", table(["part", ">mean", ">std", ">P50", ">P95", ">P99", ">longest", ">sum"], rows));
}

function recovery() {
  const again = new Map((judged.starts || []).map((start) => [start.incarnation, start.steps_run_again]));
  const rows = data.starts.map((start) => [String(start.number), String(start.begins_after), start.steps ? `${start.first} to ${start.last}` : "none on record",
    known(start.time) ? when(start.time) : "–", known(start.gap_s) ? number(start.gap_s, "s") : "–", String(again.get(start.number) || 0), String(start.ranks), start.tier]);
  const count = judged.steps_run_again || 0, durable = judged.durable_steps_run_again || 0;
  const end = {stopped: "stopped before its end", failed: "it failed", lost: "it ended when a rank was lost"}[data.verdict];
  const note = data.starts.length > 1 ? `${data.starts.length === 2 ? "started again once" : `started again ${data.starts.length - 1} times`}; ` +
    (count ? `steps run again: ${count}, of which ${durable} were durable` : "no step was run again") + (end ? `; ${end}` : "") : `started once, ${end || "never interrupted"}`;
  card("Starts and recovery", note, stacked([">start", ">after step", "steps on record", "first step", ">gap before", ">run again later", ">ranks", "tier"], rows));
}

function flatten(prefix, value, rows) {
  if (value !== null && typeof value === "object")
    for (const [key, inner] of Object.entries(value)) flatten(prefix ? prefix + "." + key : key, inner, rows);
  else rows.push([prefix, String(value)]);
}

function details() {
  if (!data.report) return;
  const rows = [];
  flatten("", data.report, rows);
  card("report.json", "", element("details", {}, element("summary", {}, `all ${rows.length} members`), table(["name", "value"], rows)));
}

head();
flatness();
curves();
causes();
ranks();
parts();
recovery();
details();
page.append(element("footer", {}, "Made from metrics.jsonl, starts.json, incarnations/ and report.json of the run folder; this file needs nothing else."));
document.documentElement.dataset.state = "complete";
