# SPDX-License-Identifier: Apache-2.0
# A run that is killed again and again loses nothing; and the killer sees it when one does: of a binary that calls steps
# durable before they are written, and one that writes into a buffer that is still being read, both must be caught.
set -u
: "${ISOTACH:?the binary to test}" "${ISO_ROOT:?the repository}" "${ISO_BUILD:?where it was built}"
case $(ldd "$ISOTACH") in *asan* | *tsan*) slow=1 ;; *) slow=0 ;; esac
tiny=$ISO_ROOT/examples/tiny.yaml

said=$("$ISO_ROOT/tests/chaos/kill" --times 12 --sample 6 "$tiny") || { echo "FAIL: $said"; exit 1; }
echo "$said"
[ "$(echo "$said" | tail -n 1)" = "lost 0 of 12, wrong 0 of 12" ] || exit 1
[ "$slow" -eq 0 ] || exit 0 # no library goes before a sanitizer's own

# Steps take as long to be written as several to be computed: what is wrong then is seen soon, if not at the first kills.
for sabotage in ack-early reuse-buffer; do
  said=$(ISOTACH=$ISO_BUILD/isotach-$sabotage "$ISO_ROOT/tests/chaos/kill" --times 100 --sample 2 --until-caught \
    --slow-log 15 "$ISO_BUILD/faulty.so" "$tiny" 2>/dev/null) && { echo "FAIL: $sabotage was not caught: $said"; exit 1; }
  echo "$sabotage: $(echo "$said" | tail -n 1)"
done
said=$("$ISO_ROOT/tests/chaos/kill" --times 6 --sample 3 --slow-log 15 "$ISO_BUILD/faulty.so" "$tiny") ||
  { echo "FAIL: a slow log: $said"; exit 1; }
echo "slow log: $(echo "$said" | tail -n 1)"
