# SPDX-License-Identifier: Apache-2.0
#
# isotach top on a terminal (tmux): a run under way is followed, so is a new size of the terminal, keys sort, quit and
# stop it, and the terminal is as it was after each way to end. Once, as text or JSON: of a live, an ended and a killed
# run, and wherever there is no terminal that can address its cursor.
. "$ISO_ROOT/tests/cli/common.sh"

command -v tmux >/dev/null 2>&1 || { echo "skipped: there is no tmux"; exit 77; }
unset TMUX
export TERM=screen ENV=
tm() { tmux -S "$scratch/tmux" -f /dev/null "$@"; }
trap 'tm kill-server 2>/dev/null; [ -z "${pid:-}" ] || kill "$pid" 2>/dev/null; rm -rf "$scratch"' EXIT

screen() { tm capture-pane -p -t top >screen 2>/dev/null; }
# until_true WHAT COMMAND...: waits until the command is true; the test ends where it never is.
until_true() {
  what=$1
  shift
  for _ in $(seq 600); do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.05
  done
  screen
  fail "$what: never: $*; on the screen: $(cat screen)"
  finish
}
on_screen() {
  screen
  grep -q -- "$1" screen
}
# until_screen WHAT PATTERN: the screen shows it.
until_screen() { until_true "$1" on_screen "$2"; }
type_line() { tm send-keys -t top "$1" Enter; }
top_pid() { cut -d' ' -f1 "/proc/$(cat shell.pid)/task/$(cat shell.pid)/children"; }
# in_front COMMAND: it has the terminal.
in_front() { [ "$(tm display-message -p -t top '#{pane_current_command}')" = "$1" ]; }
turns=0
# shell_is_back WHAT CODE: the shell has the terminal again, what is typed is echoed, and all is set as it was.
shell_is_back() {
  until_true "$1" in_front sh
  turns=$((turns + 1))
  type_line "echo back \$?-$turns; stty -a >stty.next; mv stty.next stty.$turns"
  until_screen "$1" "back $2-$turns\$"
  until_screen "$1: it is not echoed" "echo back"
  until_true "$1: stty" test -s "stty.$turns"
  same stty.before "stty.$turns"
}
# The step that the screen shows.
step_on_screen() { sed -n 's/^step \([0-9]*\).*/\1/p' screen | head -n 1; }
moved_on() {
  screen
  [ -n "$(step_on_screen)" ] && [ "$(step_on_screen)" -gt "$1" ]
}
rows_are() {
  screen
  [ "$(awk '/^q quit/ { print NR }' screen)" = "$1" ]
}

small() {
  screen
  [ "$(grep -c . screen)" -eq 5 ] && grep -q '^rank ' screen
}

size_is() { [ "$(stty size <"$(tm display-message -p -t top '#{pane_tty}')")" = "$1 $2" ]; }
# resize ROWS COLUMNS: tmux gives the terminal its new size a little later
resize() {
  tm resize-window -t top -x "$2" -y "$1"
  until_true "$1 rows of $2 columns" size_is "$1" "$2"
}

# ---- a run under way ----

timeout -k 5 140 "$ISOTACH" train "$tiny" run=live steps=1000000 threads=1 --ranks 2 >live.out 2>live.err &
pid=$!
until_true "the run begins" test -s live/vitals.json

tm new-session -d -s top -x 80 -y 24 "exec timeout --foreground 140 sh" || { fail "tmux does not start"; finish; }
until_true "a shell" in_front sh
type_line "PS1='> '; echo \$\$ >shell.pid; stty -a >stty.before; echo rea''dy"
until_screen "a shell" 'ready$'

type_line "$ISOTACH top live"
until_screen "a live run" '^RUNNING live '
until_screen "its ranks" '^   1 '
until_screen "its signs" 'flatness'
until_screen "keys" '^q quit'
grep -q 'ETA [0-9]' screen || fail "no ETA: $(cat screen)"
rows_are 24 || fail "the keys are not in the last row: $(cat screen)"
first=$(step_on_screen)
until_true "steps go on" moved_on "$first"

# Sizes are followed.
resize 40 120
until_true "40 rows" rows_are 40
resize 5 20
until_true "5 rows" small
resize 80 300
until_true "80 rows" rows_are 80
resize 24 80
until_true "24 rows" rows_are 24

# Keys.
tm send-keys -t top h
until_screen "help" '^q  *quit'
tm send-keys -t top h
until_screen "no help" '^RUNNING live '
tm send-keys -t top C-z
until_screen "it stops" 'Stopped'
shell_is_back "behind Ctrl-Z" '[0-9]*'
type_line fg
until_screen "it goes on" '^RUNNING live '
first=$(step_on_screen)
until_true "steps go on behind fg" moved_on "$first"
tm send-keys -t top q
shell_is_back "behind q" 0

# Signals.
for end in "INT 130" "TERM 143" "HUP 129"; do
  type_line "clear; $ISOTACH top live"
  until_screen "once more" '^RUNNING live '
  kill -"${end% *}" "$(top_pid)"
  shell_is_back "behind SIG${end% *}" "${end#* }"
done
type_line "clear; $ISOTACH top live"
until_screen "once more" '^RUNNING live '
tm send-keys -t top C-c
shell_is_back "behind Ctrl-C" 130

# 64 ranks, of which the last one's steps are the longest: sorted and scrolled.
mkdir many
cp live/run.json many
awk 'BEGIN {
  printf "{\"step\": 1, \"ranks\": ["
  for (r = 0; r < 64; r++) printf "%s{\"rank\": %d, \"host\": \"h%d\", \"wall_s\": %f, \"compute_s\": 0.5}", r ? ", " : "", r, r, 1 + r / 100
  print "]}"
}' >many/vitals.json
type_line "clear; $ISOTACH top many"
first_rank_is() {
  screen
  [ "$(sed -n '/^rank host/{n;s/^ *\([0-9]*\) .*/\1/p;q;}' screen)" = "$1" ]
}
until_true "ranks in their order" first_rank_is 0
tm send-keys -t top w
until_true "the longest step first" first_rank_is 63
tm send-keys -t top Down
until_true "one down" first_rank_is 62
tm send-keys -t top n
until_true "ranks in their order again" first_rank_is 0
tm send-keys -t top End
until_screen "the last one" '^  63 h63 '
tm send-keys -t top Home
until_true "the first one" first_rank_is 0
tm send-keys -t top C-d
shell_is_back "behind Ctrl-D" 0

# Terminals that cannot do it.
resize 80 200
for term in dumb ""; do
  type_line "clear; TERM=$term $ISOTACH top live; echo en''ds"
  until_screen "TERM=$term" '^RUNNING live '
  until_screen "TERM=$term" 'ends$'
done

# ---- once ----

# plain: in the file out, without escape codes or anything that is not ASCII.
plain() { [ "$(tr -d '\n -~' <out | wc -c)" -eq 0 ] || fail "$1: not plain text: $(cat -v out)"; }
run 0 top live --once
plain live
grep -q '^RUNNING live  start 1, process ' out || fail "live, once: $(cat out)"
grep -q '^   1 .*% [#drs.]*$' out || fail "live, once, ranks: $(cat out)"
run 0 top live
plain "no terminal"
grep -q '^RUNNING live ' out || fail "no terminal: $(cat out)"
run 0 top live --json
python3 - <<'END' || fail "live, JSON: $(cat out)"
import json
top = json.load(open("out"))
assert top["state"] == "running" and top["step"] > 0 and top["steps"] == 1000000 and top["eta_s"] > 0
assert [r["rank"] for r in top["ranks"]] == [0, 1] and len(top["signs"]) == 4 and top["note"] == ""
for r in top["ranks"]:
    parts = sum(r[p] for p in ("compute_s", "data_wait_s", "reduce_wait_s", "storage_wait_s", "other_s"))
    assert abs(parts - r["wall_s"]) <= 0.01 * r["wall_s"], r
END

# One that is killed is not shown as live, on a screen that is there already neither.
resize 24 80
type_line "clear; $ISOTACH top live"
until_screen "once more" '^RUNNING live '
kill -KILL "$(cut -d' ' -f2 live/lock)"
until_screen "a killed run" '^KILLED live .*not running since 20'
tm send-keys -t top q
shell_is_back "behind a killed run" 0
wait "$pid"
pid=
run 0 top live --once
plain killed
grep -q '^KILLED live  not running since 20.*Z (.* ago)$' out || fail "killed, once: $(cat out)"
grep -q ETA out && fail "killed, once: an ETA: $(cat out)"

run 0 train "$tiny" run=ended
run 0 top ended --once
plain ended
grep -q '^DONE ended  not running since 20' out || fail "ended, once: $(cat out)"
grep -q '^step 40/40 100.0%  durable step 40$' out || fail "ended, once: $(cat out)"
run 0 top ended --json
grep -q '"state": "ended", "verdict": "done", "exit_code": 0' out || fail "ended, JSON: $(cat out)"

refused 3 "'nowhere' does not exist; name a run folder" top nowhere
mkdir empty
refused 3 "'empty' is no run folder: it has no run.json" top empty
refused 3 "'out' is a file; name a run folder" top out
refused 2 "top: 's3://b/p' is a target or mirror, which does not say how a run is; name the run folder" top s3://b/p
finish
