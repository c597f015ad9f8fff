#!/bin/sh
# A cargo that looks into the file and prints what the real one would. Its arguments are kept in `asked`.
echo "$*" >> asked
arguments="$*" file=exercises/ch01_sum.rs
has() { grep -q "$1" $file; }
hang() { echo $$ > $1; sleep 1000; }
error() { printf '{"reason":"compiler-message","message":{"level":"error","message":"m","rendered":"%s","spans":[{"file_name":"%s","is_primary":true,"line_start":61,"expansion":null}]}}\n' "$1" "$2"; }
broken() { echo '{"reason":"build-finished","success":false}'; exit 101; }
case "$*" in
    run*gains*) has COUNTS && hang counting; printf 'chapter 1, Sums\n  sums made: 9 → 1\n'; exit 0 ;;
    run*generate*) echo 'One day a king'; has ENDLESS && hang generating; exit 0 ;;
    *--test\ ch01_sum*) ;;
    *) echo "error: the test did not expect: $*" >&2; exit 1 ;;
esac
echo '   Compiling sample v0.1.0' >&2
printf '    Building [=====>    ] 1/9: sample   \r' >&2
has SLOW && hang building
has BROKEN && { error 'error: expected `;`\n' src/../$file; broken; }
has ELSEWHERE && { error 'error: in a solution' solutions/ch02_more.rs; error 'error: in exercises/ch02_more.rs' src/../exercises/ch02_more.rs; broken; }
has REFUSED && { printf 'error: sample@0.1.0: not this\nerror: page-by-page@0.1.0: exercises/ch02_x.rs is missing\n' >&2; exit 101; }
echo '{"reason":"build-finished","success":true}'
has HANGS && { echo 'running 1 test'; hang hanging; }
has ABORTS && { echo 'running 2 tests'; echo 'error: checks::task_1_adds asks for 9 bytes more' >&2; exit 134; }
one= two= n=0 lines= words= list= code=0
has WRONG && one='sum of [1, 2]
  expected: 3
  yours:    0'
has 'task 1' && one="sum of [1, 2]
  your code panicked ($file:3): not yet implemented: ch01 task 1: add the numbers"
has 'task 2' && two="mean of [2]
  your code panicked ($file:7): not yet implemented: ch01 task 2: divide"
check() {
    case "$arguments" in *--skip\ $1*) return ;; *--skip*) ;; *task_*) case "$arguments" in *$1*) ;; *) return ;; esac ;; esac
    n=$((n + 1))
    [ "$3" ] || { lines="$lines
test checks::$1$2 ... ok"; return; }
    code=101 lines="$lines
test checks::$1$2 ... FAILED" words="$words
---- checks::$1$2 stdout ----

thread 'checks::$1$2' (7) panicked at tests/x.rs:1:1:
$3
note: run with \`RUST_BACKTRACE=1\` environment variable to display a backtrace
" list="$list
    checks::$1$2"
}
check task_1_ adds "$one"
check task_2_ divides "$two"
printf '%s\n' "running $n tests$lines

failures:
$words
failures:$list

test result: x"
exit $code
