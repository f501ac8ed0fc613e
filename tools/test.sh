#!/usr/bin/env bash
# tools/test.sh VENV [pytest arguments]: run the tests that need no engine on all cores, then the others
# one by one, since what starts ranks needs the cores for itself.

set -uo pipefail
venv=$1
shift
none=5 # pytest's exit code where no test is left to run

"$venv/bin/python" -m pytest -n auto -m "not oneflow and not testbed" "$@"
alone=$?
[ "$alone" -eq 0 ] || [ "$alone" -eq "$none" ] || exit "$alone"
"$venv/bin/python" -m pytest -m "oneflow or testbed" "$@"
ranks=$?
[ "$ranks" -eq "$none" ] && exit "$alone"
exit "$ranks"
