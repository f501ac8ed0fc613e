#!/usr/bin/env bash
# tools/test.sh VENV [pytest arguments]: run the tests that need no engine on all cores; those that only
# trace with OneFlow on two (each process brings threads for all cores); and one after the other what
# starts ranks or runs graphs: on crowded cores short calls of a graph sometimes crash the engine.
# Without OneFlow in VENV only the first.

set -uo pipefail
venv=$1
shift
none=5 # pytest's exit code where no test is left to run
passed=$none

run() {
    "$venv/bin/python" -m pytest "$@"
    local code=$?
    [ "$code" -eq "$none" ] && return
    [ "$code" -eq 0 ] || exit "$code"
    passed=0
}

PYTHONPATH=. "$venv/bin/python" tools/compile_loops.py || exit
run -n auto -m "not oneflow and not ranks and not testbed" "$@"
if "$venv/bin/python" -c 'import importlib.util as u; exit(u.find_spec("oneflow") is None)'; then
    run -n 2 --dist loadfile -m "oneflow and not ranks and not testbed" "$@"
    run -m "ranks or testbed" "$@"
fi
exit "$passed"
