# SPDX-License-Identifier: Apache-2.0
# bench gemm: a row for each product with the fields that readers of the document rely on, and shares that add up.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 bench gemm --quick --seconds 0 --threads 1 --dtype bfloat16 --json
command -v python3 >/dev/null 2>&1 || { echo "skipped: there is no python3"; exit 77; }
python3 - out <<'END' || fail "the document is not as described"
import json, math, sys
document = json.load(open(sys.argv[1]))
rows = document["rows"]
keys = {"m", "n", "k", "product", "dtype", "threads", "gflops", "peak_gflops", "share", "packing_share"}
assert len(rows) == 12 and all(set(row) == keys for row in rows)
assert {row["product"] for row in rows} == {"xwt", "dyw", "dytx"}
assert all(row["dtype"] == "bfloat16" and row["threads"] == 1 for row in rows)
assert all(abs(row["share"] * row["peak_gflops"] / row["gflops"] - 1) < 1e-6 for row in rows)
mean = math.exp(sum(math.log(row["share"]) for row in rows) / len(rows))
assert abs(document["geomean_share"] / mean - 1) < 1e-6
mean = sum(row["packing_share"] for row in rows) / len(rows)
assert abs(document["pack_share"] - mean) < 1e-9 and all(row["packing_share"] >= 0 for row in rows)
assert 0 <= document["pack_share"] <= document["pack_share_most"] < 1
END

run 0 bench gemm --quick --seconds 0 --threads 2 --dtype float32
grep -Eq '^ +1024 +768 +2048 +dytx +float32 +2 ' out || fail "no row of the last product: $(cat out)"
refused 2 'bench gemm: --dtype must be float32 or bfloat16, not "float64"' bench gemm --dtype float64
finish
