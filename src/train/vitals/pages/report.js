// SPDX-License-Identifier: Apache-2.0
// report.html: what a run was like, from the JSON that stands in the page (report_page.c says what is in it).
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const points = data.points, step = points.step;
const last = (values) => { for (let i = values.length - 1; i >= 0; i--) if (known(values[i])) return values[i]; return NaN; };
const curve = (name, label, color) => ({label, color, mean: points[name].mean, low: points[name].low, high: points[name].high});

function head() {
  const mood = {done: "good", failed: "bad", lost: "bad"}[data.verdict] || "";
  const report = data.report || {};
  page.append(element("header", {}, element("h1", {}, data.run), element("span", {class: "badge " + mood}, data.verdict),
    element("p", {}, [known(report.parameters) ? number(report.parameters) + " parameters" : "", `${data.steps} steps on record`,
      data.began ? "from " + when(data.began) + " to " + when(data.ended) : "", "isotach " + data.version].filter(Boolean).join(" · "))));
  const tiles = element("div", {class: "tiles"});
  const put = (value, unit, label) => { if (known(value)) tiles.append(tile(number(value, unit), label)); };
  put(known(report.loss) ? report.loss : last(points.loss.mean), "", "loss at the end");
  put(report.bits_per_byte, "", "bits per byte, held out");
  put(data.tokens, "", "tokens");
  put(data.tokens / data.wall_s, "", "tokens/s over all steps");
  put(known(report.mfu) ? report.mfu : NaN, "share", "of the measured peak (MFU)");
  put(data.wall_s, "s", "in steps");
  page.append(tiles);
}

const when = (time) => new Date(time * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";

function flatness() {
  const f = data.flatness, tiles = element("div", {class: "tiles"});
  const put = (value, unit, label, good) => { if (known(value)) tiles.append(tile(number(value, unit), label, good === undefined ? "" : good ? "good" : "bad")); };
  put(f.p99_over_median, "", "p99 / median step time (level: ≤ 1.05)", f.p99_over_median <= 1.05);
  put(f.last_over_first, "", "last / first tenth, tokens/s (level: ≥ 0.99)", f.last_over_first >= 0.99);
  put(f.p50_s, "s", "median step");
  put(f.p95_s, "s", "step, P95");
  put(f.p99_s, "s", "step, P99");
  put(f.compute_share, "share", "of the time computing");
  if (!tiles.children.length) tiles.append(tile("–", "too few steps to say how level the run was"));
  page.append(tiles);
}

function curves() {
  const grid = element("div", {class: "grid"});
  page.append(grid);
  const one = (name, title, note, options) => {
    if (!points[name]) return;
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
  one("mfu", "MFU", "useful FLOP per second over the measured peak" + band, {unit: "share", zero: true});
  const drawn = new Set(["step", "loss", "tokens_per_s", "wall_s", "grad_norm", "lr", "mfu", ...PARTS.map((part) => part[0])]);
  for (const [name, meaning] of Object.entries(data.names)) // what later versions count too
    if (!drawn.has(name) && points[name]) one(name, name, meaning.help, {unit: meaning.unit === "s" ? "s" : "", zero: true});
}

function card(title, note, ...content) {
  page.querySelector(".grid").append(element("section", {class: "card wide"}, element("h2", {}, title), note ? element("p", {class: "note"}, note) : null, ...content));
}

function causes() {
  const most = Math.max(...data.causes.map((cause) => cause.seconds), 1e-12);
  const rows = data.causes.map((cause) => {
    const color = (PARTS.find((part) => part[0] === cause.name) || [0, 0, "var(--main)"])[2];
    const bar = element("td", {class: "stretch"}, element("div", {class: "bar", style: `width:${(100 * cause.seconds) / most}%;background:${color}`}));
    return [cause.cause, number(cause.seconds, "s"), number(cause.seconds / data.wall_s, "share"), bar];
  });
  card("What the time was lost to", `of ${number(data.wall_s, "s")} in steps`,
    rows.length ? table(["cause", ">time", ">share", ""], rows) : element("p", {}, "nothing"));
}

function parts() {
  const rows = data.parts.map((part) => [part.name, ...["mean", "std", "p50", "p95", "p99", "most"].map((key) => number(part[key], "s")), number(part.seconds, "s")]);
  card("A step's parts", "over all steps", table(["part", ">mean", ">std", ">P50", ">P95", ">P99", ">longest", ">sum"], rows));
}

function recovery() {
  const rows = data.starts.map((start) => [String(start.number), String(start.begins_after), start.steps ? `${start.first} to ${start.last}` : "none on record",
    known(start.time) ? when(start.time) : "–", known(start.gap_s) ? number(start.gap_s, "s") : "–", String(start.again), String(start.ranks), start.tier]);
  const again = data.starts.reduce((sum, start) => sum + start.again, 0);
  const note = data.starts.length > 1 ? `${data.starts.length === 2 ? "started again once" : `started again ${data.starts.length - 1} times`}; ` +
    (again ? `steps taken again, since they were not durable or the run went back: ${again}` : "no step was taken again") : "started once, never interrupted";
  card("Starts and recovery", note, table([">start", ">after step", "steps on record", "first step", ">gap before", ">taken again", ">ranks", "tier"], rows));
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
parts();
recovery();
details();
page.append(element("footer", {}, "Made from metrics.jsonl, incarnations/ and report.json of the run folder; this file needs nothing else."));
document.documentElement.dataset.state = "complete";
