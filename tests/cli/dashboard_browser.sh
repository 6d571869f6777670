# SPDX-License-Identifier: Apache-2.0
# labels: long
#
# The dashboard in Debian's Chromium, over a run under way: values move, no error comes up, a click on an instruction
# tells of it, and at 1280 and 390 pixels everything is drawn and nothing sticks out. Also of a model of 64 layers, by
# two ranks. $KEEP_SHOTS is a folder for the screenshots.
. "$ISO_ROOT/tests/cli/common.sh"

for tool in chromium python3; do
  command -v $tool >/dev/null 2>&1 || { echo "skipped: there is no $tool"; exit 77; }
done
sed -e 's/num_hidden_layers: 2/num_hidden_layers: 64/' -e "s#tiny/#$ISO_ROOT/examples/tiny/#g" "$tiny" >deep.yaml

# start CONFIG WORDS...: a run in the background; $url, $pid
start() {
  rm -rf live
  timeout -k 5 600 "$ISOTACH" train "$@" run=live steps=1000000 vitals.dashboard=127.0.0.1:0 >live.out 2>live.err &
  pid=$!
  until [ -s live/metrics.jsonl ] && [ "$(wc -l <live/metrics.jsonl)" -gt 60 ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  url=$(sed -n 's/^# dashboard: //p' live.out)
  [ -n "$url" ] || { fail "no address: $(cat live.err)"; finish; }
}
stop() {
  kill -TERM "$(cut -d" " -f2 live/lock)"
  wait "$pid"
}

cat >look.py <<'PYTHON'
import os
import sys

sys.path.insert(0, os.environ["ISO_ROOT"] + "/tests/cli")
sys.dont_write_bytecode = True
from browser import Browser

url, name, layers, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
failures = []


def check(good, text):
    if not good:
        failures.append(text)


def layout(browser, width):
    """Every picture is drawn, nothing sticks out, and no number is broken."""
    browser.size(width, 900)
    browser.wait(f"innerWidth === {width} && [...document.querySelectorAll('.chart svg')].every((svg) => !svg.hasAttribute('viewBox') || "
                 f"Math.abs(svg.viewBox.baseVal.width - svg.parentNode.clientWidth) <= 1)")
    found = browser.value("""(() => {
      const inside = (box) => box.getBoundingClientRect().right <= innerWidth + 0.5 && box.getBoundingClientRect().left >= -0.5;
      const boxes = [...document.querySelectorAll("section, .tile, header, .instruction, .rank, .legend, .budget")];
      return {scroll: document.documentElement.scrollWidth, out: boxes.filter((box) => !inside(box)).map((box) => box.className + ": " + box.textContent.slice(0, 40)),
        empty: [...document.querySelectorAll(".chart svg")].filter((svg) => !svg.querySelector("path, rect, circle")).map((svg) => svg.getAttribute("aria-label")),
        broken: (document.querySelector("main").innerHTML.match(/.{30}(NaN|undefined|Infinity).{10}/) || [""])[0]};
    })()""")
    check(found["scroll"] <= width, f"{width} pixels: the page is {found['scroll']} wide")
    check(not found["out"], f"{width} pixels: sticks out: {found['out'][:3]}")
    check(not found["empty"], f"{width} pixels: not drawn: {found['empty'][:3]}")
    check(not found["broken"], f"{width} pixels: {found['broken']}")
    browser.shot(f"{name}-{width}.png")
    check(os.path.getsize(f"{name}-{width}.png") > 60000, f"{name}-{width}.png: nothing to see")


def breaches(browser, width):
    """Of a breach all is told where it can be seen, and a word of it stands in one piece."""
    browser.size(width, 900)
    told = browser.value("""fetch("data.json").then((answer) => answer.json()).then((data) => {
      const words = "12.3 MB/s of the log, bound 800 MB/s", cause = "disk";
      data.breaches = [{step: 120, time: data.timeline[0].time, event: "begin", sign: "checkpoint_bandwidth", text: words, rank: 0, host: "a-host.example", cause, cause_s: 1.5}];
      show(data);
      const cells = [...shown.signs.querySelectorAll("h3 ~ .scroll tbody td")], range = document.createRange();
      return cells.map((cell) => {
        range.selectNodeContents(cell);
        const box = range.getBoundingClientRect(), lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size;
        return {text: cell.textContent, left: box.left, right: box.right, lines, head: cell.dataset.head};
      });
    })""")
    check(len(told) == 6, f"{width} pixels: a breach is told in {len(told)} cells")
    for cell in told:
        check(cell["left"] >= 0 and cell["right"] <= width, f"{width} pixels: a breach's {cell.get('head')} is at {cell['left']} to {cell['right']}")
        check(cell["lines"] <= 2, f"{width} pixels: a breach's {cell.get('head')} has {cell['lines']} lines")


with Browser(".") as browser:
    data = "document.documentElement.dataset"
    browser.open(url, 1280, 900)
    browser.wait(f"{data}.looks >= 2")
    browser.wait("document.querySelector('[data-times]')?.dataset.times >= 1")
    # values move
    before = browser.value(f"({{step: Number({data}.step), at: Number(document.querySelector('[data-times]').dataset.step)}})")
    browser.wait(f"Number({data}.step) > {before['step']}")
    browser.wait(f"Number(document.querySelector('[data-times]').dataset.step) > {before['at']}")
    browser.wait("document.querySelectorAll('.rank').length")
    check(browser.value("document.querySelectorAll('.rank').length") == ranks, "not a bar for each rank")
    check(browser.value("[...document.querySelectorAll('td b')].map((b) => b.textContent).join()") ==
          "data_load_latency,allreduce_wait,checkpoint_bandwidth,flatness", "not the four signs")
    smoothed = browser.value("""fetch("data.json").then((answer) => answer.json()).then((data) => {
      Object.assign(data.latest, {tokens_per_s: 1, mfu: 0.5});
      Object.assign(data.smoothed, {tokens_per_s: 4321, mfu: 0.125, eta_s: 90});
      show(data);
      return Object.fromEntries([...document.querySelectorAll(".tile")].map((tile) => [tile.lastChild.textContent, tile.firstChild.textContent]));
    })""")
    for label, wanted in (("tokens/s", "4321"), ("of the measured peak (MFU)", "12.5 %"), ("left", "90.0 s")):
        check(smoothed.get(label) == wanted, f"{label}: {smoothed.get(label)}, not the smoothed {wanted}")
    # what is old says so; what there cannot be says why
    told = browser.value("""fetch("data.json").then((answer) => answer.json()).then((data) => {
      const all = () => shown.ranks.textContent + shown.signs.textContent;
      show(data);
      const fresh = all();
      data.taken += 1000000;
      show(data);
      return [fresh, all()];
    })""")
    check("steps (about" not in told[0] and told[1].count("steps (about") == 2, f"the age of signs and ranks: {told[1][:200]}")
    check(("there is one rank" in told[0]) == (ranks == 1), "allreduce_wait of one rank")
    # the program: all of it, and an instruction by a click
    program = browser.value("fetch('program.json').then((answer) => answer.json())")
    count = len(program["instructions"])
    check(count > 30 * layers, f"{count} instructions")
    check(browser.value("document.querySelectorAll('[data-overview] .cell').length") == count, "a cell is missing")
    wanted = next(i for i, one in enumerate(program["instructions"]) if one["op"] == "attention" and one["layer"] == "layers.1")
    browser.click(f"[data-instruction='{wanted}']")
    browser.wait(f"document.querySelector('.instruction').dataset.selected === '{wanted}'", 10)
    told = browser.value("document.querySelector('.instruction').innerText")
    for text in (f"{wanted}: attention", "forward of layers.1", "time a step", "GFLOP/s", "bytes", "122, 64", "head"):
        check(text in told, f"an instruction's details lack '{text}': {told[:300]}")
    check("not known yet" not in told and "nothing to do" not in told, "no time of the instruction")
    # its graph: a node, by mouse and by key; what it reads, by a link
    other = browser.value(f"[...document.querySelectorAll('.node')].map((node) => node.dataset.node).find((i) => i !== '{wanted}')")
    browser.click(f"[data-node='{other}']")
    browser.wait(f"document.querySelector('.instruction').dataset.selected === '{other}'", 10)
    browser.press(f"[data-node='{wanted}']", "Enter")
    browser.wait(f"document.querySelector('.instruction').dataset.selected === '{wanted}'", 10)
    source = browser.value("document.querySelector('.links button').dataset.go")
    browser.click(".links button")
    browser.wait(f"document.querySelector('.instruction').dataset.selected === '{source}'", 10)
    # a box
    browser.click("[data-overview] .group:not(.opened)")
    browser.wait("document.querySelectorAll('[data-overview] .group.opened').length === 1", 10)
    layout(browser, 1280)
    breaches(browser, 1280)
    layout(browser, 390)
    breaches(browser, 390)
    # at 390 pixels a tap tells of an instruction too
    browser.click(f"[data-instruction='{wanted}']")
    browser.wait(f"document.querySelector('.instruction').dataset.selected === '{wanted}'", 10)
    check(not browser.problems, f"the console says: {browser.problems[:3]}")
for failure in failures:
    print(f"{name}: {failure}")
sys.exit(1 if failures else 0)
PYTHON
start "$tiny" checkpoint.snapshot_every=100
python3 look.py "$url" tiny 2 1 >found 2>&1 || fail "$(cat found)"
stop
start "$scratch/deep.yaml" --ranks 2 log.enabled=false
python3 look.py "$url" deep 64 2 >found 2>&1 || fail "$(cat found)"
stop
[ -z "${KEEP_SHOTS:-}" ] || cp ./*.png "$KEEP_SHOTS"
finish
