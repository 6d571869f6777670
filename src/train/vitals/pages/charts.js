// SPDX-License-Identifier: Apache-2.0
// Elements, numbers as people read them, and line charts drawn as SVG. Nothing is loaded from anywhere.
"use strict";

// element("div", {class: "x"}, "text", child ...): text is never parsed as HTML.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const known = (value) => typeof value === "number" && isFinite(value);

function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return String(Number(value.toPrecision(3)));
}

function seconds(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-6) return digits(value * 1e9) + " ns";
  if (size < 1e-3) return digits(value * 1e6) + " µs";
  if (size < 1) return digits(value * 1e3) + " ms";
  if (size < 120) return digits(value) + " s";
  if (size < 7200) return digits(value / 60) + " min";
  return digits(value / 3600) + " h";
}

function number(value, unit) {
  if (!known(value)) return "–";
  if (unit === "s") return seconds(value);
  if (unit === "share") return (100 * value).toFixed(Math.abs(value) < 0.1 ? 2 : 1) + " %";
  const size = Math.abs(value);
  for (const [limit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= limit) return digits(letter === "k" ? value / 1e3 : value / limit) + " " + letter;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? value.toFixed(0) : size >= 1 ? value.toFixed(3) : String(Number(value.toPrecision(3)));
}

const plain = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, ""); // 10.0 k: 10 k

function ticks(low, high, most) {
  const raw = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

// A chart in `host`: {unit, xUnit, stacked, zero, height, limit}; show(x, lines), lines: [{label, color, mean, low, high}].
// low and high are drawn as a band. The vertical range follows the means and leaves room for what lies beyond them.
class Chart {
  constructor(host, options) {
    this.host = host;
    this.options = {height: 220, unit: "", zero: false, stacked: false, ...options};
    this.x = [];
    this.lines = [];
    host.classList.add("chart");
    this.svg = shape("svg", {role: "img", height: this.options.height});
    this.tip = element("div", {class: "tip", hidden: ""});
    host.append(this.svg, this.tip);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(host);
  }

  show(x, lines) {
    this.x = x;
    this.lines = lines;
    this.draw();
  }

  tops() { // of stacked lines
    const sums = this.x.map(() => 0);
    return this.lines.map((line) => line.mean.map((value, i) => (sums[i] += known(value) ? value : 0)));
  }

  range() {
    let low = Infinity, high = -Infinity;
    const take = (value) => {
      if (!known(value)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const values of this.options.stacked ? this.tops() : this.lines.map((line) => line.mean)) values.forEach(take);
    if (!this.options.stacked)
      for (const line of this.lines) { // bands: without the rare extremes
        const all = [...(line.low || []), ...(line.high || [])].filter(known).sort((a, b) => a - b);
        if (all.length) [0.01, 0.99].forEach((part) => take(all[Math.round(part * (all.length - 1))]));
      }
    if (this.options.stacked || this.options.zero) low = Math.min(0, low);
    if (!known(low)) [low, high] = [0, 1];
    if (high === low) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.05, high + Math.abs(high) * 0.05];
    const room = (high - low) * 0.06;
    return [low === 0 ? 0 : low - room, this.options.top || high + room];
  }

  path(values, back) {
    const at = (i, value) => this.px(this.x[i]).toFixed(1) + " " + this.py(value).toFixed(1);
    const there = (i) => i < values.length && known(values[i]) && (!back || known(back[i]));
    let text = "";
    for (let i = 0; i < values.length; i++) { // a piece between two gaps; of a band each is closed by itself
      if (!there(i)) continue;
      const first = i;
      for (text += "M" + at(i, values[i]); there(i + 1);) text += "L" + at(++i, values[i]);
      if (!back) continue;
      for (let k = i; k >= first; k--) text += "L" + at(k, back[k]);
      text += "Z";
    }
    return text;
  }

  draw() {
    const width = this.host.clientWidth, height = this.options.height;
    if (!width) return;
    const left = 58, right = 10, top = 10, bottom = 24;
    const [low, high] = this.range();
    const first = this.x.length ? this.x[0] : 0, last = this.x.length ? this.x[this.x.length - 1] : 1;
    this.px = (value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
    this.py = (value) => top + (1 - (Math.min(Math.max(value, low), high) - low) / (high - low)) * (height - top - bottom);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    for (const at of ticks(low, high, 5)) {
      const y = this.py(at);
      this.svg.append(shape("line", {class: "grid-line", x1: left, x2: width - right, y1: y, y2: y}),
        shape("text", {x: left - 7, y: y + 4, "text-anchor": "end"}, plain(number(at, this.options.unit))));
    }
    for (const at of ticks(first, last, width / 110)) {
      const x = this.px(at), side = x > width - 30 ? "end" : "middle";
      this.svg.append(shape("text", {x, y: height - 6, "text-anchor": side}, plain(number(at, this.options.xUnit))));
    }
    if (this.options.stacked) this.drawStack();
    else this.drawLines();
    this.rule = shape("line", {class: "rule", y1: top, y2: height - bottom, visibility: "hidden"});
    this.svg.append(this.rule);
    const said = this.lines.map((line) => `${line.label} ${number(line.mean[line.mean.length - 1], this.options.unit)}`);
    this.svg.setAttribute("aria-label", `curves, at the end: ${said.join(", ")}`);
  }

  drawStack() {
    let under = this.x.map(() => 0);
    this.tops().forEach((values, i) => {
      this.svg.append(shape("path", {d: this.path(values, under), fill: this.lines[i].color, "fill-opacity": 0.85}));
      under = values;
    });
  }

  drawLines() {
    for (const line of this.lines)
      if (line.high) this.svg.append(shape("path", {d: this.path(line.high, line.low), fill: line.color, "fill-opacity": 0.18}));
    for (const line of this.lines)
      this.svg.append(shape("path", {d: this.path(line.mean), fill: "none", stroke: line.color, "stroke-width": 1.8, "stroke-linejoin": "round"}));
  }

  point(event) {
    if (!this.x.length || !this.px) return;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    let best = 0;
    this.x.forEach((value, i) => { if (Math.abs(this.px(value) - at) < Math.abs(this.px(this.x[best]) - at)) best = i; });
    const x = this.px(this.x[best]);
    for (const name of ["x1", "x2"]) this.rule.setAttribute(name, x);
    this.rule.setAttribute("visibility", "visible");
    this.tip.replaceChildren(element("b", {}, (this.options.xLabel || "step") + " " + number(this.x[best], this.options.xUnit)));
    for (const line of this.lines) {
      const band = line.high && known(line.high[best]) ? ` (${number(line.low[best], this.options.unit)} – ${number(line.high[best], this.options.unit)})` : "";
      this.tip.append(element("div", {}, `${line.label}: ${number(line.mean[best], this.options.unit)}${band}`));
    }
    this.tip.hidden = false;
    const room = this.host.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = Math.max(0, Math.min(room, x > this.host.clientWidth / 2 ? x - this.tip.offsetWidth - 12 : x + 12)) + "px";
  }

  leave() {
    this.tip.hidden = true;
    if (this.rule) this.rule.setAttribute("visibility", "hidden");
  }
}

function legend(lines) {
  return element("div", {class: "legend"}, ...lines.map((line) => element("span", {}, element("i", {style: `background:${line.color}`}), line.label)));
}

// A card with a chart in it; returns the chart.
function chartCard(parent, title, note, options, lines) {
  const card = element("section", {class: "card"}, element("h2", {}, title), element("p", {class: "note"}, note));
  const host = element("div", {});
  card.append(host);
  if (lines && lines.length > 1) card.append(legend(lines));
  parent.append(card);
  return new Chart(host, options);
}

function tile(value, label, mood) {
  return element("div", {class: "tile" + (mood ? " " + mood : "")}, element("b", {}, value), element("span", {}, label));
}

function table(heads, rows) { // heads: "text" or ">text" for a column of numbers
  const right = heads.map((head) => head.startsWith(">"));
  const cells = (tag, row) => row.map((cell, i) => cell instanceof Element && cell.tagName === "TD" ? cell : element(tag, {class: right[i] ? "number" : "text"}, cell));
  return element("div", {class: "scroll"}, element("table", {},
    element("thead", {}, element("tr", {}, ...cells("th", heads.map((head) => head.replace(/^>/, ""))))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row))))));
}

// The same, of which narrow screens have each cell below the one before, with its head in front.
function stacked(heads, rows) {
  const made = table(heads, rows);
  made.classList.add("stack");
  for (const row of made.querySelectorAll("tbody tr"))
    [...row.children].forEach((cell, i) => { if (heads[i]) cell.dataset.head = heads[i].replace(/^>/, ""); });
  return made;
}

const PARTS = [["compute_s", "compute", "var(--compute)"], ["data_wait_s", "data wait", "var(--data)"], ["reduce_wait_s", "reduce wait", "var(--reduce)"],
  ["storage_wait_s", "storage wait", "var(--storage)"], ["other_s", "other", "var(--other)"]];
