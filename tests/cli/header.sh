# SPDX-License-Identifier: Apache-2.0
# The public header compiles alone, as C99 and C17 and, where there is a C++ compiler, as C++; its version is the binary's.
. "$ISO_ROOT/tests/cli/common.sh"

header=$ISO_ROOT/include/isotach.h
for standard in c99 c17; do
  "${CC:-cc}" -std=$standard -pedantic -Wall -Wextra -Werror -fsyntax-only -x c "$header" || fail "as $standard"
done
if command -v c++ >/dev/null; then
  c++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c++ "$header" || fail "as C++"
fi
version=$(sed -n 's/#define ISOTACH_VERSION "\(.*\)"/\1/p' "$header")
[ "$(isotach --version)" = "isotach $version" ] || fail "the header says $version, the binary $(isotach --version)"
finish
