# SPDX-License-Identifier: Apache-2.0
# labels: long
#
# vitals.tensorboard, read by TensorBoard itself (PyPI): scalars are those of metrics.jsonl, each step once also when a
# run goes back, histograms of gradients by layer, the config as text; bits are those of a run without it.
. "$ISO_ROOT/tests/cli/common.sh"

if ! venv=$("$ISO_ROOT/tools/venv" tensorboard 2>venv.err); then
  echo "skipped: no TensorBoard: $(tail -n 1 venv.err)"
  exit 77
fi
run 0 train "$tiny" run=r steps=120 stop_at=110 vitals.tensorboard=true
run 0 train "$tiny" run=r steps=120 vitals.tensorboard=true --from-step 105
run 0 train "$tiny" run=plain steps=120
isotach digest r >a
isotach digest plain >b
same a b
[ "$(ls r/tensorboard | wc -l)" -eq 2 ] || fail "not a file for each start: $(ls r/tensorboard)"
"$venv/bin/python" - r <<'CHECK' >out 2>err || fail "TensorBoard reads something else: $(tail -n 5 err)"
import json, math, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
run = sys.argv[1]
lines = {line["step"]: line for line in map(json.loads, open(run + "/metrics.jsonl"))}
events = EventAccumulator(run + "/tensorboard", size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
names = [name for name, value in lines[120].items() if isinstance(value, (int, float)) and name not in ("step", "time")]
assert len(names) > 10
for name in names:
    series = events.Scalars(name)
    wanted = [step for step in range(1, 121) if lines[step][name] is not None]
    assert [event.step for event in series] == wanted, (name, [event.step for event in series][-20:])
    for event in series:
        assert math.isclose(event.value, lines[event.step][name], rel_tol=1e-6, abs_tol=1e-30), (name, event)
        assert abs(event.wall_time - lines[event.step]["time"]) < 1
histograms = sorted(tag for tag in tags["histograms"] if tag.startswith("gradients/"))
assert histograms == ["gradients/embed_tokens", "gradients/layers.0", "gradients/layers.1", "gradients/norm"], histograms
for tag in histograms:
    steps = [event.step for event in events.Histograms(tag)]
    assert steps == [1, 50, 100, 106], steps
    for event in events.Histograms(tag):
        value = event.histogram_value
        assert value.num == sum(value.bucket) > 0 and value.min < 0 < value.max or tag == "gradients/norm", value
        assert sorted(value.bucket_limit) == list(value.bucket_limit)
# the squares of all layers are the norm that the line has
total = sum(event.histogram_value.sum_squares for tag in histograms for event in events.Histograms(tag) if event.step == 100)
assert math.isclose(math.sqrt(total), lines[100]["grad_norm"], rel_tol=1e-5), (math.sqrt(total), lines[100]["grad_norm"])
text = [tensor_util.make_ndarray(event.tensor_proto).item().decode() for event in events.Tensors("config")]
assert "hidden_size" in text[-1] and "steps: 120" in text[-1], text
CHECK
finish
