# SPDX-License-Identifier: Apache-2.0
# labels: long
#
# A real Prometheus (Debian's package) scrapes a run: it takes the whole text, and its own query language says what
# metrics.jsonl says.
. "$ISO_ROOT/tests/cli/common.sh"

for tool in prometheus promtool curl python3; do
  command -v $tool >/dev/null 2>&1 || { echo "skipped: there is no $tool"; exit 77; }
done
set -- $(awk -v seed="$$" 'BEGIN { srand(seed); for (i = 0; i < 2; i++) print 20000 + 6000 * i + int(6000 * rand()) }')
port=$1 own=$2

timeout -k 5 200 "$ISOTACH" train "$tiny" run=live steps=1000000 vitals.metrics_port="$port" >live.out 2>live.err &
run_pid=$!
until [ -s live/metrics.jsonl ] || ! kill -0 $run_pid 2>/dev/null; do sleep 0.05; done
curl -sS --fail "http://127.0.0.1:$port/metrics" >page || { fail "no answer: $(cat live.err)"; finish; }
promtool check metrics <page >check 2>&1 || grep -vE 'counters should have|should not have|no units|_total|abbreviated|base units|^$' check >wrong
[ -s wrong ] && fail "promtool says $(cat wrong)"

cat >prometheus.yml <<YAML
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: isotach
    static_configs: [{targets: ["127.0.0.1:$port"]}]
YAML
prometheus --config.file=prometheus.yml --storage.tsdb.path=tsdb --web.listen-address="127.0.0.1:$own" >prometheus.log 2>&1 &
prometheus_pid=$!

query() { curl -sS --max-time 20 -G "http://127.0.0.1:$own/api/v1/query" --data-urlencode "query=$1" 2>/dev/null; }
tries=0
until query 'changes(isotach_step[1m]) > 1' | grep -q '"metric":{'; do
  tries=$((tries + 1))
  [ $tries -lt 600 ] && kill -0 $prometheus_pid && kill -0 $run_pid || { fail "no two scrapes: $(tail -n 5 prometheus.log)"; break; }
  sleep 0.2
done
query 'up{job="isotach"}' >up
grep -q '"value":\[[0-9.]*,"1"\]' up || fail "the run is not up: $(cat up)"
query '{__name__=~"isotach_.+"}' >all
query 'isotach_loss' >loss
kill -TERM "$(cut -d" " -f2 live/lock)"
wait $run_pid
kill -TERM $prometheus_pid
wait $prometheus_pid
python3 - live/metrics.jsonl all loss <<'CHECK' || fail "what Prometheus holds is not what the lines say: $(head -c 400 all)"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
held = {(one["metric"]["__name__"], one["metric"].get("quantile")): float(one["value"][1]) for one in json.load(open(sys.argv[2]))["data"]["result"]}
by_step = {line["step"]: line for line in lines}
at = by_step[int(held["isotach_step", None])]
for name in ("loss", "lr", "grad_norm", "tokens"):
    assert abs(held["isotach_" + name, None] - at[name]) <= 1e-6 * abs(at[name]), name
done = [line for line in lines if line["step"] <= at["step"]]
for name in ("wall_s", "compute_s"):
    total = sum(line[name] for line in done)
    assert abs(held[f"isotach_{name}_sum", None] - total) <= 1e-6 * total, name
    assert held[f"isotach_{name}_count", None] == len(done)
    recent = sorted(line[name] for line in done[-1024:])
    assert recent[0] <= held["isotach_" + name, "0.5"] <= held["isotach_" + name, "0.99"] <= recent[-1]
CHECK
finish
