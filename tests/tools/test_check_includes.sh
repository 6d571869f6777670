#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tools/check-includes on small trees: a clean one passes, and each kind of violation is found, alone, where it is.
set -u
tool=$(cd "$(dirname "$0")/../.." && pwd)/tools/check-includes
tree=$(mktemp -d) || exit 2
trap 'rm -rf "$tree"' EXIT
failures=0

# file PATH LINE...: a source file with its SPDX line and these lines.
file() {
  path=$tree/$1
  shift
  mkdir -p "$(dirname "$path")"
  { echo '/* SPDX-License-Identifier: Apache-2.0 */'; printf '%s\n' "$@"; } >"$path"
}

clean_tree() {
  rm -rf "$tree/src" "$tree/include"
  mkdir -p "$tree/include"
  file include/isotach.h '#include <stddef.h>' 'size_t iso_version(void);'
  file src/base/base.h '#include <stdint.h>'
  file src/kernels/scalar/sum.c '#include "base/base.h"' '#include "kernels/kernels.h"'
  file src/passes/pipeline.c '#include "graph/graph.h"' '#include "kernels/kernels.h"' '#include "passes/passes.h"'
  file src/comm/mpi.c '#include <mpi.h>' '#include "comm/comm.h"'
  file src/train/loop.c '#include "exec/exec.h"' '#include "text/text.h"' '#include "isotach.h"'
  file src/infer/generate.c '#include "train/train.h"' '#include "model/model.h"'
  file src/cli/main.c '#include "plan/plan.h"' '#include "infer/infer.h"' '#include <linux/futex.h>'
  file src/graph/op.c '#include "graph/ops.def"' '/* #include "exec/exec.h"' '#include "train/train.h" */' \
    'const char *s = "/*"; /* don'"'"'t */' '#include "base/base.h"'
}

# expect PATTERN: the tool fails with exactly one line, which matches.
expect() {
  output=$("$tool" "$tree" 2>/dev/null)
  code=$?
  if [ $code -ne 1 ] || [ "$(printf '%s\n' "$output" | wc -l)" -ne 1 ] || ! printf '%s\n' "$output" | grep -Eq "$1"; then
    echo "FAILED: expected one line like: $1"
    echo "  exit $code, output: $output"
    failures=$((failures + 1))
  fi
  clean_tree
}

# expect_clean WARNING: the tool passes without output; standard error matches WARNING ("" = empty).
expect_clean() {
  output=$("$tool" "$tree" 2>"$tree/warnings")
  code=$?
  if [ $code -ne 0 ] || [ -n "$output" ] || { [ -z "$1" ] && [ -s "$tree/warnings" ]; } ||
    { [ -n "$1" ] && ! grep -Eq "$1" "$tree/warnings"; }; then
    echo "FAILED: expected a pass with warning '$1'"
    echo "  exit $code, output: $output, warnings: $(cat "$tree/warnings")"
    failures=$((failures + 1))
  fi
  clean_tree
}

# lines COUNT TEXT: COUNT lines of TEXT
lines() { awk -v n="$1" -v text="$2" 'BEGIN { while (n-- > 0) print text }'; }

clean_tree
expect_clean ''

for pair in 'base graph' 'kernels graph' 'graph kernels' 'passes exec' 'text io' 'io data' 'data graph' 'comm store' \
  'store exec' 'exec model' 'exec passes' 'model kernels' 'train infer' 'train plan' 'train cli' 'infer plan' \
  'plan kernels' 'plan exec' 'graph passes'; do
  from=${pair% *} to=${pair#* }
  file "src/$from/bad.c" '#include "base/base.h"' "  #  include \"$to/$to.h\" /* why */"
  expect "^src/$from/bad\.c:3: $from may not include $to \(\"$to/$to\.h\"\)\$"
done

file src/graph/op.c 'const char *s = "/*";' '#include "exec/exec.h"'
expect '^src/graph/op\.c:3: graph may not include exec'
file src/graph/op.c '/* one' '   two */' '#include "exec/exec.h"'
expect '^src/graph/op\.c:4: graph may not include exec'
file src/exec/run.c '#include <mpi.h>'
expect '^src/exec/run\.c:2: only src/comm/mpi\.c may include mpi\.h$'
file src/comm/self.c '#include "mpi.h"'
expect '^src/comm/self\.c:2: only src/comm/mpi\.c'
file src/io/file.c '#include "io.h"'
expect '^src/io/file\.c:2: "io\.h" is not of the form'
file src/io/file.c '#include "disk/disk.h"'
expect '^src/io/file\.c:2: "disk/disk\.h" is not of the form'
file src/io/file.c '#include <base/base.h>'
expect '^src/io/file\.c:2: write "base/base\.h" in double quotes$'
file src/io/file.c '#include "io/../graph/graph.h"'
expect '^src/io/file\.c:2: .* leaves its folder by dots$'
file src/io/file.c '#include IO_HEADER'
expect '^src/io/file\.c:2: an include that is computed'
file src/misc/util.c 'int x;'
expect '^src/misc/util\.c:1: folder src/misc has no row'
file src/io/bare.c
printf 'int x;\n' >"$tree/src/io/bare.c"
expect '^src/io/bare\.c:1: the first line must be the SPDX line$'
file include/isotach.h '#include "base/base.h"'
mkdir -p "$tree/base" # so that only the rule, not a missing file, is in question
"$tool" "$tree" 2>/dev/null | grep -q '^include/isotach\.h:2: the public header includes base/base\.h' ||
  { echo 'FAILED: public header with a private include'; failures=$((failures + 1)); }
clean_tree
file include/isotach.h '#include <unistd.h>'
expect '^include/isotach\.h:2: the public header includes unistd\.h'
file include/isotach.h 'size_t iso_version(void);'
expect '^include/isotach\.h:1: does not compile alone: .*size_t'

file src/io/long.c "$(lines 799 'extern int x;')"
expect_clean ''
file src/io/long.c "$(lines 800 'extern int x;')"
expect '^src/io/long\.c:801: 801 lines, 800 are the limit'
file src/io/first.c "$(lines 800 'extern int x;')"
file src/io/second.c 'extern int y;' # the count starts anew with each file
expect '^src/io/first\.c:801: 801 lines'

file src/io/function.c 'static int iso_thing_do(int a,' '                int b) {' "$(lines 57 '  a += b;')" '  return a;' '}'
expect_clean ''
file src/io/function.c 'static int iso_thing_do(int a,' '                int b) {' "$(lines 58 '  a += b;')" '  return a;' '}'
expect_clean 'src/io/function\.c:3: warning: function iso_thing_do has 61 lines'
file src/kernels/function.c 'int f(int a) {' "$(lines 100 '  a++;')" '  return a;' '}'
expect_clean ''

if [ $failures -ne 0 ]; then
  echo "$failures checks failed"
  exit 1
fi
echo 'all checks passed'
