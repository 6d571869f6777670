// SPDX-License-Identifier: Apache-2.0
// Panels of the dashboard that are no curves: ranks, signs, the timeline, gradient flow and the memory plan. Each is a
// function of the element to fill and of what data.json or program.json says.
"use strict";

const clock = (time) => known(time) ? new Date(time * 1000).toISOString().slice(11, 19) : "–";
const unit = (text, what) => text + (/\d$/.test(text) ? " " : "") + what;
const size = (bytes) => unit(number(bytes), "B");
const note = (text) => element("p", {class: "note"}, text);

// A picture as wide as its host, drawn again when that changes. draw(svg, width) returns the height.
class Picture {
  constructor(host, label) {
    this.host = host;
    this.svg = shape("svg", {role: "img", "aria-label": label});
    host.classList.add("chart");
    host.append(this.svg);
    new ResizeObserver(() => { if (host.clientWidth !== this.width) this.redraw(); }).observe(host);
  }

  show(draw) {
    this.draw = draw;
    this.redraw();
  }

  redraw() {
    this.width = this.host.clientWidth;
    if (!this.width || !this.draw) return;
    this.svg.replaceChildren();
    const height = Math.ceil(this.draw(this.svg, this.width));
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
  }
}

function titled(made, text) {
  made.append(shape("title", {}, text));
  return made;
}

// ---- the budget by rank: P50 of each part, and P95 below it ----

// How old what the loop says of signs and ranks is, as it does where nobody has looked for a while; "": it is fresh.
function ageOf(data) {
  const behind = data.health && data.health.ranks.length ? data.taken - data.health.ranks[0].steps : 0;
  const seconds = (behind * data.latest.tokens) / data.latest.step / data.smoothed.tokens_per_s;
  return behind > 1 && seconds > 3 ? `as of ${behind} steps (about ${number(seconds, "s")}) ago; what is newer comes within seconds` : "";
}

function showRanks(host, health, age) {
  if (!health) return void host.replaceChildren(note("not known yet"));
  const sum = (rank, key) => PARTS.reduce((all, part) => all + (rank[part[0]][key] || 0), 0);
  const most = Math.max(...health.ranks.map((rank) => Math.max(sum(rank, "p50"), sum(rank, "p95"))), 1e-12);
  const bar = (rank, key) => element("div", {class: "budget " + key}, ...PARTS.map(([name, label, color]) =>
    element("i", {style: `width:${(100 * rank[name][key]) / most}%;background:${color}`, title: `${label}, ${key.toUpperCase()}: ${number(rank[name][key], "s")}`})));
  const rows = health.ranks.map((rank) => element("div", {class: "rank", "data-rank": rank.rank}, element("span", {}, `rank ${rank.rank}`, element("small", {}, rank.host)),
    element("div", {}, bar(rank, "p50"), bar(rank, "p95"))));
  const pair = (rank, name) => `${number(rank[name].p50, "s")} / ${number(rank[name].p95, "s")}`;
  host.replaceChildren(note(age), element("div", {class: "ranks"}, ...rows), legend(PARTS.map(([, label, color]) => ({label, color}))),
    table(["rank", ">steps", ">step", ...PARTS.map((part) => ">" + part[1])],
      health.ranks.map((rank) => [String(rank.rank), String(rank.steps), pair(rank, "wall_s"), ...PARTS.map((part) => pair(rank, part[0]))])));
}

// ---- signs ----

const SIGNS = {
  data_load_latency: "P95 of the wait for a batch: below 3 ms",
  allreduce_wait: "wait in reductions: mean below 2 ms or 1 % of the step, deviation below 0.3 ms or 0.2 %",
  checkpoint_bandwidth: "made durable while writing: at least 800 MB/s, or 90 % of the best window",
  flatness: "P99 of the steps over their median: at most 1.05",
};

function signValue(value, kind) {
  if (!known(value)) return "–";
  return kind === "bytes/s" ? unit(number(value), "B/s") : number(value, kind === "s" ? "s" : "");
}

function showSigns(host, health, breaches, age) {
  const alone = health && health.ranks.length <= 1, judged = health && health.signs.some((sign) => sign.sign === "flatness" && known(sign.value));
  const unknown = (sign) => alone && sign === "allreduce_wait" ? "there is one rank" : !judged ? "no window yet" : sign === "checkpoint_bandwidth" ? "too little written" : "not known";
  const rows = (health ? health.signs : []).map((sign) => {
    const beyond = sign.sign === "checkpoint_bandwidth" || sign.bound < 1 && sign.sign === "flatness" ? sign.value < sign.bound : sign.value > sign.bound;
    const state = !known(sign.value) ? ["", unknown(sign.sign)] : sign.out ? ["bad", "out of bounds"] : beyond ? ["", "beyond, in one window"] : ["good", "well"];
    return [element("td", {class: "text"}, element("b", {}, sign.sign), element("div", {class: "note"}, SIGNS[sign.sign] || "")), element("td", {}, element("span", {class: "badge " + state[0]}, state[1])),
      signValue(sign.value, sign.unit), signValue(sign.bound, sign.unit), sign.out ? `rank ${sign.rank} on ${sign.host}, since step ${sign.since_step}` : ""];
  });
  const told = breaches.slice(-12).reverse().map((breach) => [`${breach.step}`, clock(breach.time), {begin: "out of bounds", change: "other cause"}[breach.event] || "ended", breach.sign, breach.text,
    breach.event !== "end" ? `${breach.cause}, ${number(breach.cause_s, "s")}; rank ${breach.rank} on ${breach.host}` : `after ${number(breach.seconds, "s")}`]);
  host.replaceChildren(note(age), rows.length ? stacked(["sign", "state", ">value", ">bound", "where"], rows) : note("not known yet"),
    element("h3", {}, `Breaches (${breaches.length})`), told.length ? stacked([">step", "UTC", "event", "sign", "what", "cause"], told) : note("none"));
}

// ---- snapshots, log and starts over steps ----

function spans(events, now) { // of steps in which the log was suspended
  const found = [];
  for (const event of events) {
    if (event.kind === "log suspended") found.push([event.at_step, now]);
    else if (event.kind === "log whole" && found.length) found[found.length - 1][1] = event.at_step;
  }
  return found;
}

function drawTimeline(svg, width, data) {
  const now = Math.max(data.latest.step || 0, 1), durable = data.latest.durable_step || 0, label = 76, lane = 26;
  const x = (step) => label + (step / now) * (width - label - 14);
  const box = (from, to, y, color, text) => svg.append(titled(shape("rect", {x: x(from), y, width: Math.max(x(to) - x(from), 1.5), height: 12, rx: 2, fill: color}), text));
  ["starts", "snapshots", "log"].forEach((name, i) => svg.append(shape("text", {x: 0, y: i * lane + 16}, name),
    shape("line", {class: "grid-line", x1: label, x2: width - 14, y1: i * lane + 12, y2: i * lane + 12})));
  box(0, durable, 2 * lane + 6, "var(--good)", `durable: up to step ${durable}`);
  if (now > durable) box(durable, now, 2 * lane + 6, "var(--data)", `not durable yet: steps ${durable + 1} to ${now}`);
  for (const [from, to] of spans(data.timeline, now)) box(from, to, 2 * lane + 6, "var(--bad)", `the log was suspended from step ${from} to ${to}`);
  for (const event of data.timeline) {
    if (event.kind !== "start" && event.kind !== "snapshot") continue;
    const y = event.kind === "start" ? 12 : lane + 12, at = x(event.kind === "start" ? event.at_step : event.step);
    const mark = event.kind === "start" ? shape("path", {d: `M${at - 4} ${y - 6}L${at + 5} ${y}L${at - 4} ${y + 6}Z`, fill: "var(--main)"}) : shape("circle", {cx: at, cy: y, r: 4.5, fill: "var(--storage)"});
    svg.append(titled(mark, event.text));
  }
  for (const at of ticks(0, now, width / 110)) svg.append(shape("text", {x: x(at), y: 3 * lane + 14, "text-anchor": at > 0.95 * now ? "end" : "middle"}, plain(number(at))));
  return 3 * lane + 20;
}

function showTimeline(view, data) {
  view.picture = view.picture || new Picture(view.body.appendChild(element("div", {})), "starts, snapshots and the log over steps");
  if (!view.list) {
    view.body.append(legend([["durable", "good"], ["not durable yet", "data"], ["log suspended", "bad"], ["start", "main"], ["snapshot", "storage"]].map(([label, color]) => ({label, color: `var(--${color})`}))));
    view.list = view.body.appendChild(element("div", {}));
  }
  view.picture.show((svg, width) => drawTimeline(svg, width, data));
  const rows = data.timeline.slice(-10).reverse().map((event) => [String(event.at_step), clock(event.time), event.kind, event.text + (known(event.seconds) ? `, written in ${number(event.seconds, "s")}` : "")]);
  view.list.replaceChildren(stacked([">step", "UTC", "event", "what"], rows));
}

// ---- gradient flow: rows are layers, columns looks; the shade is the logarithm between the least and the largest ----

function drawFlow(svg, width, gradients, low, high) {
  const label = width < 500 ? 92 : 110, row = 18, most = Math.max(1, Math.floor((width - label) / 4));
  const every = Math.ceil(gradients.step.length / most), looks = gradients.step.map((_, i) => i).filter((i) => (gradients.step.length - 1 - i) % every === 0);
  const wide = (width - label) / looks.length;
  gradients.layers.forEach((name, layer) => {
    svg.append(shape("text", {x: label - 8, y: layer * row + 13, "text-anchor": "end"}, name));
    looks.forEach((look, column) => {
      const value = gradients.rms[look][layer];
      const part = known(value) && value > 0 ? (Math.log10(value) - low) / (high - low || 1) : 0;
      svg.append(titled(shape("rect", {x: label + column * wide, y: layer * row, width: wide + 0.5, height: row - 1, fill: known(value) ? "var(--main)" : "var(--bad)", "fill-opacity": known(value) ? 0.08 + 0.92 * part : 1}),
        `${name}, step ${gradients.step[look]}: ${known(value) ? number(value) : "not finite"}`));
    });
  });
  const last = gradients.layers.length * row + 14;
  svg.append(shape("text", {x: label, y: last}, `step ${gradients.step[looks[0]]}`));
  if (looks.length > 1) svg.append(shape("text", {x: width, y: last, "text-anchor": "end"}, `step ${gradients.step[looks[looks.length - 1]]}`));
  return last + 6;
}

function showFlow(view, gradients) {
  const all = gradients.rms.flat().filter((value) => known(value) && value > 0).map(Math.log10);
  if (!view.words) {
    view.picture = new Picture(view.body.appendChild(element("div", {class: "tall"})), "gradient by layer and step");
    view.words = view.body.appendChild(note("no look yet: the next is at a multiple of 50 steps"));
  }
  const seen = gradients.step.join();
  if (!all.length || seen === view.seen) return;
  view.seen = seen;
  const low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  view.picture.show((svg, width) => drawFlow(svg, width, gradients, low, high));
  view.words.textContent = `light: ${number(10 ** low)}, dark: ${number(10 ** high)}`;
}

// ---- the memory plan: what it holds, and the transient arena over the step's instructions ----

const SHADES = ["var(--compute)", "var(--data)", "var(--reduce)", "var(--storage)", "var(--other)", "var(--good)", "var(--bad)"];

function liveBytes(program) { // by instruction
  const change = new Array(program.instructions.length + 1).fill(0);
  for (const [, bytes, first, last] of program.buffers) {
    change[first] += bytes;
    change[last + 1] -= bytes;
  }
  let sum = 0;
  return change.slice(0, -1).map((value) => (sum += value));
}

function drawArena(svg, width, program, live) {
  const left = 62, right = 8, tall = 220, count = program.instructions.length, arena = program.memory.arena || 1;
  const x = (i) => left + (i / count) * (width - left - right), y = (bytes) => 8 + (1 - bytes / arena) * tall;
  program.buffers.forEach(([offset, bytes, first, last, name, op], i) => {
    if (first > last) return;
    svg.append(titled(shape("rect", {x: x(first), y: y(offset + bytes), width: Math.max(x(last + 1) - x(first), 0.6), height: Math.max(y(offset) - y(offset + bytes), 0.4),
      fill: SHADES[i % 5], "fill-opacity": 0.75, class: "buffer"}), `${name} of ${op}: ${size(bytes)} at ${size(offset)}, instructions ${first} to ${last}`));
  });
  const points = live.map((bytes, i) => `${x(i + 0.5).toFixed(1)} ${y(bytes).toFixed(1)}`);
  svg.append(shape("path", {d: "M" + points.join("L"), fill: "none", stroke: "var(--ink)", "stroke-width": 1.2}));
  for (const part of [0, 0.5, 1]) svg.append(shape("text", {x: left - 6, y: y(part * arena) + 4, "text-anchor": "end"}, size(part * arena)));
  svg.append(shape("text", {x: left, y: tall + 24}, "instruction 0"), shape("text", {x: width - right, y: tall + 24, "text-anchor": "end"}, String(count - 1)));
  return tall + 30;
}

function showMemory(view, program, resident) {
  const memory = program.memory;
  if (!view.built) {
    const rest = memory.total - memory.rows.reduce((sum, row) => sum + row.bytes, 0);
    const rows = [...memory.rows, ...(rest > 0 ? [{what: "constants, outputs, padding", bytes: rest}] : [])];
    const whole = rows.reduce((sum, row) => sum + row.bytes, 0) || 1, color = (i) => SHADES[i % SHADES.length], dim = (i) => 0.45 ** Math.floor(i / SHADES.length); // a second round is paler
    const live = liveBytes(program), peak = live.indexOf(live.reduce((a, b) => Math.max(a, b), 0));
    view.now = note("");
    view.body.append(element("div", {class: "budget memory"}, ...rows.map((row, i) => element("i", {style: `width:${(100 * row.bytes) / whole}%;background:${color(i)};opacity:${dim(i)}`, title: `${row.what}: ${size(row.bytes)}`}))), view.now,
      table(["", "what", ">size", ">share"], rows.map((row, i) => [element("td", {}, element("i", {class: "dot", style: `background:${color(i)};opacity:${dim(i)}`})), row.what, size(row.bytes), number(row.bytes / whole, "share")])),
      element("h3", {}, "The transient arena"),
      note(`${size(memory.arena)}, of which ${number(memory.arena ? memory.peak / memory.arena : 1, "share")} are live at the peak (instruction ${peak}${program.instructions[peak] ? ", " + program.instructions[peak].op : ""}). ` +
        `Across: the step's instructions; upwards: places; the line: live bytes.${memory.saved ? ` Making activations again saves ${size(memory.saved)}.` : ""}`));
    new Picture(view.body.appendChild(element("div", {})), "the arena over instructions").show((svg, width) => drawArena(svg, width, program, live));
    const held = program.buffers.filter(([, , first, last]) => first <= peak && peak <= last).sort((a, b) => b[1] - a[1]).slice(0, 10);
    view.body.append(element("details", {}, element("summary", {}, "largest at the peak"), table(["what", "of", ">size", ">from", ">to"], held.map((one) => [one[4], one[5], size(one[1]), String(one[2]), String(one[3])]))));
    view.built = true;
  }
  view.now.textContent = `planned ${size(memory.total)}; resident now ${size(resident)}, with the program and its libraries`;
}
