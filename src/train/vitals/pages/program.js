// SPDX-License-Identifier: Apache-2.0
// The step's program as a graph coloured by time. Rows are layers, columns the passes: a box is what a layer does in a
// pass, a cell in it an instruction. A box that is opened is drawn as a graph of its instructions; one that is chosen
// is told of in full. Times are those of one step at a time (times.json), asked for while the page is seen.
"use strict";

const PASSES = ["forward", "backward", "update"];
const CELL = 12, GAP = 2;

class ProgramView {
  constructor(host, program) {
    this.program = program;
    this.times = null;
    this.cells = [];
    this.nodes = new Map();
    this.groups = new Map();
    this.layers = [];
    program.instructions.forEach((instruction, i) => {
      instruction.to = [];
      const key = instruction.layer + "\n" + instruction.pass;
      if (!this.layers.includes(instruction.layer)) this.layers.push(instruction.layer);
      if (!this.groups.has(key)) this.groups.set(key, {key, layer: instruction.layer, pass: instruction.pass, members: []});
      this.groups.get(key).members.push(i);
      instruction.group = this.groups.get(key);
    });
    program.instructions.forEach((instruction, i) => instruction.from.forEach((source) => program.instructions[source].to.push(i)));
    this.said = element("p", {class: "note", "data-times": "0"}, "the first times come within two seconds");
    const scale = element("p", {class: "note heat-scale"}, "time of an instruction: ", element("i", {}), " none to the longest of the step");
    this.overviewHost = element("div", {class: "tall", "data-overview": ""});
    this.detail = element("div", {class: "instruction", hidden: "", "aria-live": "polite"});
    this.graphTitle = element("h3", {}, "");
    this.graphHost = element("div", {class: "tall"});
    this.top = element("div", {});
    host.append(this.said, scale, this.overviewHost, this.detail, this.graphTitle, this.graphHost, element("h3", {}, "What takes longest"), this.top);
    this.overview = new Picture(this.overviewHost, "the step's program by layer and pass");
    this.graph = new Picture(this.graphHost, "instructions of a layer and pass");
    this.overview.show((svg, width) => this.drawOverview(svg, width));
    this.open([...this.groups.values()][0]);
  }

  seconds(i) {
    return this.times ? this.times.seconds[i] : NaN;
  }

  heat(i) { // 0 to 1
    return this.times && this.longest > 0 ? Math.sqrt(this.times.seconds[i] / this.longest) : 0;
  }

  sum(members) {
    return members.reduce((all, i) => all + (known(this.seconds(i)) ? this.seconds(i) : 0), 0);
  }

  showTimes(times) {
    const first = !this.times;
    if (!times.looks || (this.times && times.looks === this.times.looks)) return;
    this.times = times;
    const all = times.seconds.slice(0, this.program.instructions.length);
    this.longest = all.reduce((a, b) => Math.max(a, b), 0);
    this.whole = times.seconds.reduce((a, b) => a + b, 0);
    this.said.textContent = `times of step ${times.step}: ${number(this.whole, "s")} of computing by ${times.threads > 1 ? `each of ${times.threads} threads` : "one thread"}, rank 0; one step in two seconds is timed while this page is seen`;
    this.said.dataset.times = times.looks;
    this.said.dataset.step = times.step;
    this.paint();
    this.showTop();
    if (this.chosen === undefined && first) this.choose(all.indexOf(this.longest), false);
    else if (this.chosen !== undefined) this.tell();
  }

  paint() {
    this.cells.forEach((cell, i) => { if (cell) this.paintOne(cell, i); });
    for (const [i, node] of this.nodes) {
      this.paintOne(node.box, i);
      node.time.textContent = this.times ? number(this.seconds(i), "s") : "";
    }
    for (const group of this.groups.values()) if (group.time) group.time.textContent = this.times ? number(this.sum(group.members), "s") : "";
  }

  paintOne(box, i) {
    box.style.fillOpacity = (0.06 + 0.94 * this.heat(i)).toFixed(3);
    box.classList.toggle("chosen", i === this.chosen);
  }

  // ---- all of it ----

  drawOverview(svg, width) {
    const label = width < 560 ? 0 : 104, between = width < 560 ? 8 : 26, column = (width - label - 2 * between) / 3, lineHeight = CELL + GAP;
    const across = Math.max(1, Math.floor((column - 8 + GAP) / lineHeight)), under = shape("g", {}), over = shape("g", {});
    let y = 22;
    this.cells = [];
    svg.append(under, over);
    PASSES.forEach((pass, c) => over.append(shape("text", {x: label + c * (column + between) + 2, y: 13}, pass)));
    this.layers.forEach((layer) => {
      const here = PASSES.map((pass) => this.groups.get(layer + "\n" + pass));
      if (!label) y += 15;
      over.append(shape("text", label ? {x: 0, y: y + 14} : {x: 0, y: y - 4}, layer));
      const tall = Math.max(...here.map((group) => (group ? 20 + Math.ceil(group.members.length / across) * lineHeight + 2 : 0)));
      here.forEach((group, c) => { if (group) this.drawGroup(over, group, label + c * (column + between), y, column, across); });
      y += tall + (label ? 16 : 8);
    });
    this.drawFlows(under, label ? 1 : 0);
    this.paint();
    return y;
  }

  drawGroup(parent, group, x, y, width, across) {
    const height = 20 + Math.ceil(group.members.length / across) * (CELL + GAP) + 2, step = CELL + GAP;
    group.place = {x, y, width, height};
    group.frame = shape("rect", {x, y, width, height, rx: 5, class: "group" + (group === this.opened ? " opened" : "")});
    group.frame.addEventListener("click", () => this.open(group));
    group.time = shape("text", {x: x + 5, y: y + 13}, "");
    parent.append(titled(group.frame, `${group.pass} of ${group.layer}: ${group.members.length} instructions`), group.time);
    group.members.forEach((i, k) => {
      const cell = shape("rect", {x: x + 5 + (k % across) * step, y: y + 19 + Math.floor(k / across) * step, width: CELL, height: CELL, rx: 2, class: "cell", "data-instruction": i});
      cell.addEventListener("click", () => this.choose(i, true));
      parent.append(titled(cell, `${i}: ${this.program.instructions[i].op}`));
      this.cells[i] = cell;
    });
  }

  // Arrows between boxes that are neighbours, as far as there is room for them.
  drawFlows(parent, down) {
    const rows = new Map(this.layers.map((layer, i) => [layer, i])), seen = new Set();
    this.program.instructions.forEach((instruction) => instruction.from.forEach((source) => {
      const a = this.program.instructions[source].group, b = instruction.group, key = a.key + "\n\n" + b.key;
      if (a === b || seen.has(key)) return;
      seen.add(key);
      const rise = rows.get(b.layer) - rows.get(a.layer), side = PASSES.indexOf(b.pass) - PASSES.indexOf(a.pass), p = a.place, q = b.place;
      if (side === 0 && Math.abs(rise) === 1 && down) this.arrow(parent, p.x + p.width / 2, rise > 0 ? p.y + p.height : p.y, q.x + q.width / 2, rise > 0 ? q.y : q.y + q.height);
      else if (rise === 0 && side === 1) this.arrow(parent, p.x + p.width, p.y + 10, q.x, q.y + 10);
    }));
  }

  arrow(parent, x1, y1, x2, y2) {
    const along = Math.atan2(y2 - y1, x2 - x1), tip = (turn) => `${(x2 - 6 * Math.cos(along + turn)).toFixed(1)} ${(y2 - 6 * Math.sin(along + turn)).toFixed(1)}`;
    parent.append(shape("path", {class: "flow", d: `M${x1} ${y1}L${x2} ${y2}M${tip(0.5)}L${x2} ${y2}L${tip(-0.5)}`}));
  }

  // ---- a layer in a pass ----

  open(group) {
    if (this.opened && this.opened.frame) this.opened.frame.classList.remove("opened");
    this.opened = group;
    if (group.frame) group.frame.classList.add("opened");
    this.graphTitle.textContent = `${group.pass} of ${group.layer}`;
    this.graph.show((svg, width) => this.drawGraph(svg, width));
  }

  levels(group) { // by the longest way from those that need nothing of the group
    const depth = new Map(), levels = [];
    for (const i of group.members) { // in the order of the program, so sources come first
      const own = this.program.instructions[i].from.filter((source) => depth.has(source));
      const level = own.length ? Math.max(...own.map((source) => depth.get(source))) + 1 : 0;
      depth.set(i, level);
      (levels[level] = levels[level] || []).push(i);
    }
    return levels;
  }

  drawGraph(svg, width) {
    const levels = this.levels(this.opened), most = Math.max(1, Math.floor(width / 122)), lines = [];
    for (const level of levels) for (let at = 0; at < level.length; at += most) lines.push(level.slice(at, at + most));
    const tall = 36, pitch = 58, places = new Map(), under = shape("g", {}), over = shape("g", {});
    this.nodes = new Map();
    svg.append(under, over);
    lines.forEach((line, row) => {
      const wide = Math.min(190, width / line.length - 8), start = (width - line.length * (wide + 8) + 8) / 2;
      line.forEach((i, k) => places.set(i, {x: start + k * (wide + 8), y: 6 + row * pitch, wide}));
    });
    for (const [i, place] of places) {
      this.drawNode(over, i, place, tall);
      for (const source of this.program.instructions[i].from) {
        const from = places.get(source);
        if (!from) continue;
        const x1 = from.x + from.wide / 2, y1 = from.y + tall, x2 = place.x + place.wide / 2, y2 = place.y, bend = Math.min(22, Math.abs(y2 - y1) / 2), long = y2 - y1 > pitch;
        const aside = long ? Math.min(width - 4, Math.max(x1, x2) + Math.max(from.wide, place.wide) / 2 + 8) : x2;
        under.append(shape("path", {class: "flow", d: long ? `M${x1} ${y1}C${aside} ${y1 + 20} ${aside} ${y2 - 20} ${x2} ${y2}` : `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`}));
      }
    }
    this.paint();
    return 6 + lines.length * pitch - (pitch - tall) + 8;
  }

  drawNode(parent, i, place, tall) {
    const op = this.program.instructions[i].op, room = Math.floor((place.wide - 10) / 6.2);
    const node = shape("g", {class: "node", tabindex: "0", role: "button", "data-node": i, "aria-label": `instruction ${i}: ${op}`});
    const back = shape("rect", {x: place.x, y: place.y, width: place.wide, height: tall, rx: 5, class: "node-back"});
    const box = shape("rect", {x: place.x, y: place.y, width: place.wide, height: tall, rx: 5, class: "cell"});
    const time = shape("text", {x: place.x + 6, y: place.y + 29}, "");
    node.append(back, box, shape("text", {x: place.x + 6, y: place.y + 15, class: "op"}, op.length > room ? op.slice(0, Math.max(1, room - 1)) + "…" : op), time);
    node.addEventListener("click", () => this.choose(i, true));
    node.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.choose(i, true); } });
    parent.append(titled(node, `${i}: ${op}`));
    this.nodes.set(i, {box, time});
  }

  // ---- one instruction ----

  choose(i, byHand) {
    this.chosen = i;
    const group = this.program.instructions[i].group;
    if (group !== this.opened) this.open(group);
    this.detail.hidden = false;
    this.tell();
    this.paint();
    if (byHand) this.detail.scrollIntoView({block: "nearest"});
  }

  link(i) {
    const made = element("button", {type: "button", "data-go": i}, `${i} ${this.program.instructions[i].op}`);
    made.addEventListener("click", () => this.choose(i, true));
    return made;
  }

  tell() {
    const i = this.chosen, one = this.program.instructions[i], times = this.times, count = this.program.instructions.length;
    const calls = times ? times.calls[i] : 0, seconds = this.seconds(i), rate = (amounts) => (seconds > 0 && calls ? amounts[i] / seconds : NaN);
    const facts = [["time a step", calls ? number(seconds, "s") : times ? "had nothing to do in that step" : "not known yet"], ["share", calls ? number(seconds / this.whole, "share") : "–"],
      ["slowest thread", calls ? number(times.longest_s[i], "s") : "–"], ["runs a step", calls ? String(calls) : "–"], ["of each", calls ? number(seconds / calls, "s") : "–"],
      ["GFLOP/s", calls && times.flop[i] ? digits(rate(times.flop) / 1e9) : "–"], ["GB/s", calls && times.bytes[i] ? digits(rate(times.bytes) / 1e9) : "–"], ["FLOP a run", number(one.flop)], ["bytes a run", size(one.bytes)],
      ["FLOP a byte", one.bytes ? digits(one.flop / one.bytes) : "–"], ["workspace", one.workspace ? size(one.workspace) : "none"], ["threads meet before", one.meets ? "yes" : "no"],
      ["adds to its output", {never: "no", micro: "from the second pass on", always: "always"}[one.accumulate]], ["attributes", one.attributes.trim() || "none"]];
    const operands = [...one.out.map((operand) => ["out", operand]), ...one.in.map((operand) => ["in", operand])].map(([way, operand]) =>
      [way, element("td", {class: "text break"}, operand.name), `${operand.type} [${operand.shape.join(", ")}]`, operand.space, size(operand.bytes)]);
    const step = (label, to) => {
      const made = element("button", {type: "button", "aria-label": `${label} instruction`}, label);
      made.disabled = to < 0 || to >= count;
      made.addEventListener("click", () => this.choose(to, true));
      return made;
    };
    const links = (label, list) => element("p", {class: "links"}, label, ...(list.length ? list.slice(0, 24).map((other) => this.link(other)) : [" none in the program"]), list.length > 24 ? ` and ${list.length - 24} more` : null);
    this.detail.dataset.selected = i;
    this.detail.replaceChildren(element("div", {class: "head"}, element("h3", {}, `${i}: ${one.op}`), element("span", {class: "note"}, `${one.pass} of ${one.layer}${times ? `; times of step ${times.step}` : ""}`), step("previous", i - 1), step("next", i + 1)),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("div", {}, element("dt", {}, name), element("dd", {}, value))])),
      table(["", "operand", "type and shape", "space", ">size"], operands), links("reads what is made by", one.from), links("is read by", one.to));
  }

  // ---- what takes longest ----

  showTop() {
    const all = this.program.instructions.map((_, i) => i).sort((a, b) => this.seconds(b) - this.seconds(a)).slice(0, 10), ops = new Map();
    this.program.instructions.forEach((one, i) => {
      const row = ops.get(one.op) || [0, 0, 0];
      ops.set(one.op, [row[0] + this.seconds(i), row[1] + this.times.calls[i], row[2] + this.times.flop[i]]);
    });
    const share = (seconds) => number(seconds / this.whole, "share");
    this.top.replaceChildren(element("div", {class: "grid"},
      table(["instruction", "where", ">time", ">share"], all.map((i) => [element("td", {}, this.link(i)), `${this.program.instructions[i].pass} of ${this.program.instructions[i].layer}`, number(this.seconds(i), "s"), share(this.seconds(i))])),
      table(["op", ">runs", ">time", ">share", ">GFLOP/s"], [...ops].sort((a, b) => b[1][0] - a[1][0]).slice(0, 12).map(([op, [seconds, calls, flop]]) =>
        [op, String(calls), number(seconds, "s"), share(seconds), flop && seconds > 0 ? digits(flop / seconds / 1e9) : "–"]))));
  }
}
