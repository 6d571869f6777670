# SPDX-License-Identifier: Apache-2.0
# labels: long
#
# The dashboard in Debian's Chromium: values move while a run goes on, no error comes up, and at 1280 and 390 pixels
# everything is drawn and nothing sticks out. $KEEP_SHOTS is a folder for the screenshots.
. "$ISO_ROOT/tests/cli/common.sh"

for tool in chromium curl python3; do
  command -v $tool >/dev/null 2>&1 || { echo "skipped: there is no $tool"; exit 77; }
done
browser() {
  timeout -k 5 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$scratch/profile" \
    --disable-background-networking --enable-logging=stderr "$@" 2>browser.log
}
timeout -k 5 400 "$ISOTACH" train "$tiny" run=live steps=1000000 vitals.dashboard=127.0.0.1:0 >live.out 2>live.err &
pid=$!
until [ -s live/metrics.jsonl ] && [ "$(wc -l <live/metrics.jsonl)" -gt 200 ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
url=$(sed -n 's/^# dashboard: //p' live.out)
browser --virtual-time-budget=6000 --dump-dom "$url" >dom
state=$(sed -n 's/.*<html[^>]*data-first="\([0-9]*\)"[^>]*data-step="\([0-9]*\)"[^>]*data-looks="\([0-9]*\)".*/\1 \2 \3/p' dom)
# shellcheck disable=SC2086
set -- $state
[ $# -eq 3 ] && [ "$2" -gt "$1" ] && [ "$3" -ge 2 ] || fail "values do not move: '$state' $(grep -o '<html[^>]*>' dom)"
grep -q 'CONSOLE' browser.log && fail "the console says: $(grep CONSOLE browser.log)"
browser --virtual-time-budget=3000 --window-size=1280,2400 --screenshot="$scratch/wide.png" "$url"
browser --virtual-time-budget=3000 --window-size=500,2400 --screenshot="$scratch/narrow.png" "$url"

# Both widths in frames, over a copy: the server itself lets nobody frame it.
mkdir site
curl -sS --fail "$url" >site/page.html
curl -sS --fail "${url}data.json" >site/data.json
kill -TERM "$(cut -d" " -f2 live/lock)"
wait "$pid"
cat >site/frames.html <<'PAGE'
<!DOCTYPE html><meta charset="utf-8"><body><script>
const found = [];
let left = 2;
for (const width of [1280, 390]) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 3000;
  frame.addEventListener("load", () => setTimeout(() => {
    const page = frame.contentDocument, charts = [...page.querySelectorAll(".chart svg")];
    const inside = [...page.querySelectorAll("section, .tile, header")].every((box) => box.getBoundingClientRect().right <= width + 0.5);
    found.push(`width ${width}: scroll ${page.documentElement.scrollWidth <= width} inside ${inside} charts ${charts.length} ` +
      `drawn ${charts.every((chart) => chart.querySelectorAll("path, rect").length > 0)} bad ${/NaN|undefined/.test(page.querySelector("main").innerHTML)}`);
    if (--left === 0) document.body.append(Object.assign(document.createElement("pre"), {textContent: found.join("\n")}));
  }, 1500));
  frame.src = "page.html";
  document.body.append(frame);
}
</script>
PAGE
python3 -u -m http.server --bind 127.0.0.1 --directory site 0 >served 2>served.log &
server=$!
until grep -q 'port [0-9]' served; do kill -0 $server || break; sleep 0.05; done
port=$(sed -n 's/.*port \([0-9]*\).*/\1/p' served)
browser --virtual-time-budget=5000 --dump-dom "http://127.0.0.1:$port/frames.html" >dom
kill $server
for width in 1280 390; do
  grep -Eq "width $width: scroll true inside true charts [0-9]+ drawn true bad false" dom ||
    fail "at $width pixels: $(grep "width $width:" dom || tail -n 3 browser.log)"
done
[ -z "${KEEP_SHOTS:-}" ] || cp wide.png narrow.png "$KEEP_SHOTS"
finish
