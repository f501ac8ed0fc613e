#!/usr/bin/env bash
# Make a virtual environment of this checkout, or bring it up to date; does nothing if it is.
#
#   tools/bootstrap.sh VENV EXTRAS VERSION...      e.g.  tools/bootstrap.sh .venv oneflow,dev 3.10
#
# VENV is a folder of the checkout, EXTRAS are extras of setup.py, and the first VERSION of CPython
# that this machine has is taken. PYTHON=/path/to/python says which interpreter to take instead.
#
# VENV/.stamp is written after success only and says what the environment was made from.
# VENV/.installing is there while pip works; if it is found, pip was killed and the environment is
# made anew. VENV/.made-at is the environment's own path. Exit codes: 0 ready, 1 the installation failed, 2 no such Python.

set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: tools/bootstrap.sh VENV EXTRAS VERSION..." >&2
    exit 1
fi
venv=$1 extras=$2
shift 2
versions=("$@")

CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'bootstrap: %s\n' "$*" >&2; }

# Print the real path of interpreter $1 if it runs and is a CPython $2 that can make environments.
# A pyenv shim is on PATH for versions that are not active, and then only prints an error.
probe() {
    "$1" -I - "$2" 2>/dev/null <<'PYTHON'
import ensurepip, os, platform, sys, sysconfig, venv

version = "{}.{}".format(*sys.version_info)
if platform.python_implementation() != "CPython" or version != sys.argv[1]:
    sys.exit(1)
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
# The real path, so that an activated environment does not become the base of the next one.
print(os.path.realpath(sys.executable))
PYTHON
}

# The same for any of the wanted versions.
probe_any() {
    local version
    for version in "${versions[@]}"; do
        if probe "$1" "$version"; then return 0; fi
    done
    return 1
}

# Print the places where a CPython $1 may be, best first, one a line.
candidates() {
    local version=$1 root
    type -aP "python$version" || true
    for root in "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
        [ -n "$root" ] && printf '%s\n' "$root/versions/$version".*/bin/python | sort -rV
    done
    if command -v uv >/dev/null; then
        uv python find --system --no-project "$version" 2>/dev/null || true
    fi
    printf '%s\n' "${UV_PYTHON_INSTALL_DIR:-${HOME:-}/.local/share/uv/python}/cpython-$version."*/bin/python3 |
        sort -rV
}

# Set `base` to the interpreter that PYTHON names, or to the best one found; fails if there is none.
find_python() {
    local version candidate wanted="CPython ${versions[*]}"
    wanted=${wanted// / or } wanted=${wanted/ or / }
    if [ -n "${PYTHON:-}" ]; then
        base=$(probe_any "$PYTHON") && return 0
        say "PYTHON=$PYTHON does not run, or is not $wanted with the modules venv and ensurepip."
        return 1
    fi
    for version in "${versions[@]}"; do
        while IFS= read -r candidate; do
            if [ -x "$candidate" ] && base=$(probe "$candidate" "$version"); then return 0; fi
        done < <(candidates "$version")
    done
    # The one download of an interpreter, and only by a tool that the user has for that.
    if [ ${#versions[@]} -eq 1 ] && command -v uv >/dev/null; then
        say "fetching CPython ${versions[0]} with uv"
        if uv python install --quiet "${versions[0]}" &&
            base=$(probe "$(uv python find --system --no-project "${versions[0]}")" "${versions[0]}"); then
            return 0
        fi
    fi
    say "$wanted with the modules venv and ensurepip was not found. Three ways to get it:"
    say "  pyenv:  pyenv install ${versions[0]}"
    say "  uv:     uv python install ${versions[0]}"
    say "  the system's packages, e.g. python${versions[0]} and python${versions[0]}-venv"
    say "Or name an interpreter that lies elsewhere: PYTHON=/path/to/python${versions[0]}"
    return 1
}

# What the environment is made from; compared as text, so that touching a file costs nothing.
want=$(printf '%s\n' "$extras" "${versions[*]}" && cksum setup.py pyproject.toml)

# The environment can be used as it is, or pip can bring it up to date. Its scripts and its editable
# install hold absolute paths, so one that was moved or copied with the checkout is of no use.
is_sound() {
    local base
    [ ! -e "$venv/.installing" ] || return 1
    [ "$(cat "$venv/.made-at" 2>/dev/null)" = "$PWD/$venv" ] || return 1
    base=$(probe_any "$venv/bin/python") || return 1
    [ -z "${PYTHON:-}" ] || [ "$base" = "$(probe_any "$PYTHON")" ]
}

is_fresh() {
    [ -f "$venv/.stamp" ] && [ "$(<"$venv/.stamp")" = "$want" ] && is_sound
}

if is_fresh; then exit 0; fi

# One at a time: a second caller waits, then finds the work done.
if command -v flock >/dev/null; then
    exec 9>"$venv.lock"
    flock -n 9 || { say "waiting for another bootstrap of $venv"; flock 9; }
    if is_fresh; then exit 0; fi
fi

trap 'exit 130' INT TERM HUP

note=''
if [ -d "$venv" ] && ! is_sound; then
    find_python || exit 2
    say "$venv is incomplete, was moved or has another Python; making it anew"
    rm -rf "$venv"
fi

if [ ! -d "$venv" ]; then
    [ -n "${base:-}" ] || find_python || exit 2
    say "creating $venv with $base"
    SECONDS=0
    mkdir "$venv"
    touch "$venv/.installing"
    printf '%s\n' "$PWD/$venv" >"$venv/.made-at"
    "$base" -m venv "$venv"
    say "created $venv in $SECONDS s"
    case ",$extras," in
        *,oneflow,*) note=": a download of about 2 GB, one to five minutes" ;;
    esac
fi

say "installing autoddl[$extras]$note"
SECONDS=0
rm -f "$venv/.stamp"
touch "$venv/.installing"
log=$venv/install.log
status=0
"$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
    --editable ".[$extras]" </dev/null >"$log" 2>&1 || status=$?
if [ "$status" -ge 128 ]; then exit "$status"; fi # killed: leave .installing
rm -f "$venv/.installing"
if [ "$status" -ne 0 ]; then
    say "pip failed after $SECONDS s; the end of $log:"
    tail -n 20 "$log" >&2
    exit 1
fi
printf '%s\n' "$want" >"$venv/.stamp"
say "installed autoddl[$extras] in $SECONDS s"
