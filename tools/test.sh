#!/usr/bin/env bash
# tools/test.sh VENV [pytest arguments]: run the tests that need no engine on all cores, then those that only
# trace with OneFlow on two (each process brings threads for all cores); and beside these, one after the other,
# what starts ranks or runs graphs, which mostly waits. Without OneFlow in VENV only the first. Each of the
# three runs whatever the others end with; the exit code is that of the first that failed.
#
# OneFlow 0.9 crashes where a short call of a graph ends before the thread that made it has put it into its
# queue. As batch processes the engine's threads do not preempt that thread when they are woken up, so that
# it happens more rarely (in 3 of 32 runs of some hundred calls on crowded cores, in 0 of 32 as batch); a
# test in whose process it happens is run once more, one that fails is not.

set -uo pipefail
venv=$1
shift
none=5 # pytest's exit code where no test is left to run
result=$none
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the same modules
trap 'exit 130' INT

note() { # the exit code of a run
    case $1 in "$none") return ;; esac
    case $result in 0 | "$none") result=$1 ;; esac
}

run() {
    "$venv/bin/python" -m pytest "$@"
    note $?
}

PYTHONPATH=. "$venv/bin/python" tools/compile_loops.py || exit
ranks=
if "$venv/bin/python" -c 'import importlib.util as u; exit(u.find_spec("oneflow") is None)'; then
    told=$(mktemp)
    trap 'kill "$ranks" 2>/dev/null; rm -f "$told"' EXIT
    chrt --batch 0 "$venv/bin/python" -m pytest -n 1 --reruns 1 --only-rerun crashed \
        -m "ranks or testbed" "$@" >"$told" 2>&1 &
    ranks=$!
fi
run -n auto --dist loadfile -m "not oneflow and not ranks and not testbed" "$@" # a file makes its plans once
if [ -n "$ranks" ]; then
    run -n 2 --dist loadfile -m "oneflow and not ranks and not testbed" "$@"
    wait "$ranks"
    note $?
    cat "$told"
fi
exit "$result"
