# SPDX-License-Identifier: Apache-2.0
# labels: long
#
# report.html in Debian's Chromium, without any network, 1280 and 390 pixels wide: it draws everything, nothing sticks
# out, no error comes up. $KEEP_SHOTS is a folder for the screenshots.
. "$ISO_ROOT/tests/cli/common.sh"

command -v chromium >/dev/null 2>&1 || { echo "skipped: there is no chromium"; exit 77; }
run 0 train "$tiny" run=r steps=700 stop_at=300
run 0 train "$tiny" run=r steps=700

# A page with the report in frames of both widths, which writes down what it finds: Chromium's own window has a least
# width above 390.
cat >frames.html <<'PAGE'
<!DOCTYPE html><meta charset="utf-8"><body>
<script>
const found = [];
let left = 2;
for (const width of [1280, 390]) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 3000;
  frame.addEventListener("load", () => setTimeout(() => {
    const page = frame.contentDocument, root = page.documentElement;
    const charts = [...page.querySelectorAll(".chart svg")];
    const inside = [...page.querySelectorAll("section, .tile, header")].every((box) => box.getBoundingClientRect().right <= width + 0.5);
    found.push(`width ${width}: state ${root.dataset.state} scroll ${root.scrollWidth <= width} inside ${inside} ` +
      `named ${[...page.querySelectorAll("section h2")].every((head) => /^[A-Za-z0-9',/ ]+$|^report\.json$/.test(head.textContent))} ` +
      `absent ${!/allreduce_wait\)|no data/.test(page.body.innerText) && charts.every((chart) => /[LM][\d.]/.test([...chart.querySelectorAll("path")].map((path) => path.getAttribute("d")).join("")))} ` +
      `charts ${charts.length} drawn ${charts.every((chart) => chart.querySelectorAll("path").length > 0)} ` +
      `bad ${/NaN|undefined/.test(charts.map((chart) => chart.innerHTML).join("") + page.body.innerText)}`);
    if (--left === 0) document.title = found.sort().join("\n"), document.body.append(Object.assign(document.createElement("pre"), {textContent: document.title}));
  }, 500));
  frame.src = "r/report.html";
  document.body.append(frame);
}
</script>
PAGE
browser() {
  timeout -k 5 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$scratch/profile" \
    --disable-background-networking --host-resolver-rules='MAP * ~NOTFOUND' --allow-file-access-from-files \
    --enable-logging=stderr --virtual-time-budget=8000 "$@" 2>browser.log
}
browser --dump-dom "file://$scratch/frames.html" >dom
for width in 1280 390; do
  grep -Eq "width $width: state complete scroll true inside true named true absent true charts [0-9]+ drawn true bad false" dom ||
    fail "at $width pixels: $(grep "width $width:" dom || tail -n 3 browser.log)"
done
grep -q 'CONSOLE' browser.log && fail "the console says: $(grep CONSOLE browser.log)"
# A run that failed has no report.json: its last step's loss and how it ended are said all the same.
run 8 train "$tiny" run=failed steps=1500 optimizer.lr=1000 optimizer.max_refused=2 optimizer.clip_norm=0 optimizer.warmup_steps=0 precision.compute=float32 optimizer.beta1=0 optimizer.eps=1e-30
browser --dump-dom "file://$scratch/failed/report.html" >dom
grep -q '>started once, it failed<' dom || fail "how a failed run ended: $(grep -o '>started once[^<]*' dom)"
grep -Eq 'not finite</[a-z]*><[^>]*>loss at the end' dom || fail "the loss at the end: $(grep -o '.\{80\}loss at the end' dom)"
grep -q 'CONSOLE' browser.log && fail "the console says: $(grep CONSOLE browser.log)"
browser --window-size=1280,2600 --screenshot="$scratch/wide.png" "file://$scratch/r/report.html"
browser --window-size=500,2600 --screenshot="$scratch/narrow.png" "file://$scratch/r/report.html"
for shot in wide narrow; do
  [ "$(wc -c <$shot.png)" -gt 50000 ] || fail "$shot.png has $(wc -c <$shot.png) bytes: nothing to see"
done
[ -z "${KEEP_SHOTS:-}" ] || cp wide.png narrow.png "$KEEP_SHOTS"
finish
