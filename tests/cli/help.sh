# SPDX-License-Identifier: Apache-2.0
# The help page is golden; every verb answers --help; misspelt verbs, flags and words name the nearest.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 help
sed '1s/isotach [0-9.]*/isotach VERSION/' out >page
same page "$ISO_ROOT/tests/data/cli/help.txt"
cp out first
for words in "" "--help" "-h"; do
  # shellcheck disable=SC2086
  run 0 $words
  same out first
done
run 0 --version
grep -Eqx 'isotach [0-9]+\.[0-9]+\.[0-9]+' out || fail "--version printed $(cat out)"

for verb in train init inspect verify digest export import validate generate evaluate tokenizer data top trace doctor topology bench help; do
  run 0 $verb --help
  head -n 1 out | grep -q "^usage: isotach $verb" || fail "$verb --help begins with $(head -n 1 out)"
  cp out own
  run 0 help $verb
  same out own
done
for words in "inspect graph" "inspect snapshot" "tokenizer train" "tokenizer check" "bench gemm" "bench step" "bench sweep"; do
  # shellcheck disable=SC2086
  run 0 $words --help
  grep -q '^  --json' out || fail "$words --help does not list --json"
done

run 0 help config
for key in run seed steps model.config optimizer.lr data.validation.every parallel.virtual_workers; do
  grep -Eq "^[* ] $key  *" out || fail "help config does not list $key"
done

refused 2 'unknown verb "trian"; the nearest is "train" (isotach help lists all)' trian x
refused 2 'unknown flag -x; a verb comes first (isotach help lists all)' -x
refused 2 'digest: too few words; usage: isotach digest RUN[@STEP]' digest
refused 2 'digest: "b" is one word too many; usage: isotach digest RUN[@STEP]' digest a b
refused 2 'generate: unknown flag --tempreture; the nearest is --temperature' generate x y --tempreture 3
refused 2 'generate: --top-p must be from 0 to 1, not 7' generate x y --top-p=7
refused 2 'generate: --max-tokens must be a whole number, not "1.5"' generate x y --max-tokens 1.5
refused 2 'generate: --dtype must be float32 or bfloat16, not "int8"' generate x y --dtype int8
refused 2 'generate: --seed needs a value' generate x y --seed
refused 2 'generate: --greedy takes no value' generate x y --greedy=1
refused 2 'generate: unknown flag -t; flags begin with two dashes (see isotach generate --help)' generate x y -t
refused 2 'tokenizer: unknown word "tran"; the nearest is "train"' tokenizer tran
refused 2 'inspect: too few words; usage: isotach inspect graph|program|memory|fusion CONFIG [key=value ...] | snapshot|log RUN' inspect
refused 2 'train: --ranks must be from 1 to 256, not 300' train "$tiny" --ranks 300
finish
