# SPDX-License-Identifier: Apache-2.0
# A damaged snapshot is named by verify, set aside by the next start, and the older one and the log are used.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 train "$tiny" run=run threads=1 stop_at=20
run 0 train "$tiny" run=run threads=1 stop_at=31
run 0 digest run@20
cp out twenty
run 0 digest run
cp out last
run 0 verify run
run 0 inspect snapshot run
[ "$(grep -c ' valid$' out)" -eq 2 ] || fail "inspect snapshot: $(cat out)"

file=$(ls run/snapshots/step-00000031-*/*.safetensors)
printf 'X' | dd of="$file" bs=1 seek=20000 conv=notrunc 2>/dev/null
run 1 verify run
grep -q 'step-00000031' out || fail "verify does not name the damaged snapshot: $(cat out)"
run 0 inspect snapshot run
grep -q 'step-00000031.* damaged: ' out || fail "inspect snapshot: $(cat out)"
run 0 digest run # by the log behind the older one
same out last
run 0 digest run@20
same out twenty
run 0 train "$tiny" run=run threads=1
run 0 train "$tiny" run=whole threads=1
run 0 digest whole
cp out whole.digest
run 0 digest run
same out whole.digest
ls run/aside | grep -q 'step-00000031' || fail "the damaged snapshot is not in aside/"

# The copies of a run's inputs are part of it: gone, cut, or another run's, each is a line that names it.
cp "$ISO_ROOT/examples/tiny/tokenizer/"* .
sed 's/<|endoftext|>/<|beginoftext|>/g' tokenizer.json >other.json
for name in config.yaml model.json inputs.json tokenizer/tokenizer.json; do
  for how in gone cut; do
    rm -rf copy && cp -r run copy && rm "copy/$name"
    [ $how = cut ] && head -c 40 "run/$name" >"copy/$name"
    run 1 verify copy
    [ "$(wc -l <out)" -eq 1 ] && grep -q "${name%/*}" out && [ "$(wc -l <err)" -eq 1 ] ||
      fail "verify with $name $how: $(cat out err)"
  done
done
# A digit changed in the model's config, and another run's model: weights would land in the wrong model.
for change in 's/"rope_theta":[[:space:]]*1/"rope_theta": 2/' 's/"rms_norm_eps":[[:space:]]*1/"rms_norm_eps": 3/'; do
  rm -rf copy && cp -r run copy && sed "$change" run/model.json >copy/model.json
  cmp -s run/model.json copy/model.json && fail "nothing changed by $change"
  run 1 verify copy
  grep -q '^model.json: .* altered$' out || fail "verify with $change: $(cat out err)"
  for verb in digest "export" generate; do
    case $verb in export) run 4 export copy exported ;; generate) run 4 generate copy A ;; *) run 4 digest copy ;; esac
    grep -q 'is not what the run was started with' err || fail "$verb with $change: $(cat err)"
  done
done
rm -rf copy && cp -r run copy && cp other.json copy/tokenizer/tokenizer.json
rm -f copy/tokenizer/tokenizer_config.json
run 1 verify copy
grep -q '^tokenizer/tokenizer.json: .* altered$' out && grep -q '^tokenizer/tokenizer_config.json: .*missing$' out ||
  fail "verify with another tokenizer: $(cat out err)"
# The same in a run of an older version, whose inputs.json names no CRCs, and whose other files have none.
old() { # old FILE: without its CRCs
  sed -e '/^  "files": /d' -e '/^  "crc32c": /d' -e 's/, "crc32c": "[0-9a-f]*"}$/}/' "$1" >old && tr -d '\n' <old | sed 's/,}$/}/; s/}{/}\n{/g' >"$1" &&
    echo >>"$1"
}
for name in inputs.json status.json report.json fusion.json metrics.jsonl; do old copy/$name; done
run 1 verify copy
[ "$(grep -c '^tokenizer: ' out)" -eq 1 ] || fail "verify with another tokenizer and no CRCs: $(cat out err)"
cp run/tokenizer/* copy/tokenizer/
run 0 verify copy
[ "$(grep -c '^not protected by a CRC' out)" -eq 5 ] || fail "verify of an old run: $(cat out err)"
run 0 verify copy --json
grep -q '"unprotected": \["config.yaml (keys that decide no bits), tokenizer/", "status.json", "report.json", "fusion.json", "metrics.jsonl (40 lines)"\]' out ||
  fail "verify --json of an old run: $(cat out err)"
run 0 train "$tiny" run=copy threads=1 steps=50 --accept
run 0 verify copy
[ "$(grep '^not protected' out)" = "not protected by a CRC, as written by an older version: metrics.jsonl (40 lines)" ] ||
  fail "an old run that went on: $(cat out err)"
# Damage to what no state is made from: verify names it, a start says it, sets it aside, and goes on with the same bits.
rm -rf copy && cp -r run copy
sed -i '7s/"tokens": 6/"tokens": 7/' copy/metrics.jsonl
sed -i 's/"durable_step": 4/"durable_step": 9/' copy/status.json
run 1 verify copy
[ "$(wc -l <out)" -eq 2 ] && grep -q '^metrics.jsonl, line 7: its CRC-32C is .* altered$' out && grep -q '^status.json: its CRC-32C is ' out ||
  fail "verify with damaged small files: $(cat out err)"
run 0 train "$tiny" run=copy threads=1 steps=50 --accept
grep -q 'copy/status.json: its CRC-32C .*; what it says of durable steps does not count$' err &&
  grep -q 'copy/metrics.jsonl, line 7: its CRC-32C .*; 1 such line was moved to aside/$' err || fail "a start with damaged small files: $(cat err)"
run 0 verify copy
[ "$(wc -l <copy/metrics.jsonl)" -eq 49 ] && grep -q '^{"step": 7,' copy/aside/metrics-00001.jsonl && ls copy/aside | grep -q '^status.json-' ||
  fail "damaged small files are not in aside/: $(ls copy/aside)"
run 0 digest copy
cp out copy.digest
rm -rf copy && cp -r run copy
run 0 train "$tiny" run=copy threads=1 steps=50 --accept
run 0 digest copy
same out copy.digest
# The report of a run that is complete is written anew.
sed -i 's/"steps": 5/"steps": 7/' copy/report.json
run 1 verify copy
grep -q '^report.json: ' out || fail "verify with a damaged report: $(cat out)"
run 0 train "$tiny" run=copy threads=1 steps=50 --accept
grep -q 'copy/report.json: .* it is written anew$' err || fail "a start with a damaged report: $(cat err)"
run 0 verify copy
# Snapshot N + log = snapshot N+1, over a branch too; what cannot be proven is named, what is refuted is a fault.
number() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$2"; }
run 0 train "$tiny" run=prove steps=60 stop_at=40 checkpoint.snapshot_every=10 checkpoint.keep_last=9
run 0 verify prove --replay
[ "$(grep -c '^proven: ' out)" -eq 3 ] && grep -q '^proven: step-00000020-0001 + 10 steps of the log = step-00000030-0001$' out ||
  fail "verify --replay: $(cat out)"
run 0 train "$tiny" run=prove steps=60 stop_at=44 optimizer.lr=1e-3 --accept --from-step 34 checkpoint.keep_last=9
run 0 verify prove --replay --json
[ "$(grep -o '"result": "proven"' out | wc -l)" -eq 4 ] || fail "verify --replay --json over a branch: $(cat out)"
grep -q '"faults": \[\], "snapshots": 5,' out && [ "$(number log_last_step out)" -eq 44 ] && [ "$(number durable_step out)" -eq 44 ] ||
  fail "verify --json: $(cat out)"
grep -q '"from": "step-00000030-0001", "to": "step-00000034-0002", "steps": 4' out || fail "verify --replay --json: $(cat out)"
cp -r prove gap
rm gap/log/0001-00000-000002.log
run 0 verify gap --replay
grep -q '^not proven: step-00000020-0001 + 10 steps of the log = step-00000030-0001: step 2[0-9] is not in the log$' out ||
  fail "a gap in the log: $(cat out)"
grep -q '^proven: step-00000034-0002 + 10 steps of the log = step-00000044-0002' out || fail "the pairs beside a gap: $(cat out)"
# Another run's snapshot of the same step, given this run's identity, is whole in itself and still not this run's.
run 0 train "$tiny" run=other steps=60 stop_at=20 checkpoint.snapshot_every=10 optimizer.lr=2e-3
if command -v python3 >/dev/null; then
  cp -r prove forged
  rm -r forged/snapshots/step-00000020-0001
  cp -r other/snapshots/step-00000020-0001 forged/snapshots/
  python3 - forged/snapshots/step-00000020-0001/manifest.json forged/run.json <<'PYTHON' || fail "the forger failed"
import json, sys
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82f63b78 & -(crc & 1)
    return crc ^ 0xffffffff
path, run = sys.argv[1:]
text = open(path).read()
old, new = json.loads(text)["run"], json.load(open(run))["uuid"]
text = text.replace(old, new)
head = text[:text.rindex('"crc32c"')]
open(path, "w").write(head + '"crc32c": "%08x"\n}\n' % crc32c(head.encode()))
PYTHON
  run 0 verify forged
  run 1 verify forged --replay
  [ "$(grep -c '^replay: ' out)" -eq 2 ] || fail "a forged snapshot: $(cat out)"
  grep -q '^replay: step-00000010-0001 + 10 steps of the log is not step-00000020-0001: ' out || fail "a forged snapshot: $(cat out)"
fi

# A run that goes on meanwhile, and deletes what it no longer needs, has no faults.
"$ISOTACH" train "$tiny" run=live steps=100000 checkpoint.snapshot_every=4 checkpoint.keep_last=2 >live.out 2>live.err </dev/null &
pid=$!
tries=0
while [ ! -d live/snapshots ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
for try in 1 2 3 4 5 6; do
  run 0 verify live --replay
  run 0 inspect log live
  run 0 inspect snapshot live
done
kill -9 $pid
wait $pid 2>/dev/null
run 0 verify live --replay
finish
