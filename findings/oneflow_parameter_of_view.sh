#!/usr/bin/env bash
# OneFlow 0.9.0: views of an nn.Parameter that was made from part of a tensor show another part of it.
#
# A rank that keeps its rows of a loaded weight writes nn.Parameter(weight.narrow(0, first, rows)). In PyTorch the
# parameter shares memory with these rows, and so does every view of it. Seen in OneFlow: the parameter itself prints
# and multiplies as it should, but its storage_offset() is 0, and what looks into it without computing (transpose,
# narrow, slicing, reshape, split) begins at the first row of the whole weight. With a clone() all are right.
#
# Needs CPython 3.10 (PYTHON=/path/to/python3.10). Exits 0 while OneFlow does what is described.

set -euo pipefail
python=${PYTHON:-python3.10}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-input --disable-pip-version-check \
    oneflow==0.9.0 nvidia-cudnn-cu11==8.5.0.96 nvidia-cublas-cu11==11.10.3.66 'numpy<2' 'protobuf<4'
cd "$folder"
cat >look.py <<'PYTHON'
import numpy as np
import oneflow as flow

whole = np.arange(32, dtype=np.float32).reshape(8, 4)
LOOKS = {
    "as it is": lambda t: t,
    "t * 1": lambda t: t * 1,
    "t.T": lambda t: t.T,
    "t.narrow(0, 1, 2)": lambda t: t.narrow(0, 1, 2),
    "t[1:]": lambda t: t[1:],
    "t.reshape(-1)": lambda t: t.reshape(-1),
}


def wrong(made):
    """Return which looks at rows 4 to 6 show something else than NumPy does."""
    rows = flow.tensor(whole).narrow(0, 4, 3)
    tensor, expected = made(rows), flow.tensor(whole[4:7].copy())
    return {n for n, look in LOOKS.items() if not np.array_equal(look(tensor).numpy(), look(expected).numpy())}


view, parameter = wrong(lambda rows: rows), wrong(flow.nn.Parameter)
cloned = wrong(lambda rows: flow.nn.Parameter(rows.clone()))
for name, found in (("the view", view), ("its parameter", parameter), ("that of a clone", cloned)):
    print(f"{name} shows other rows in:", ", ".join(sorted(found)) or "nothing")
views = {name for name in LOOKS if name not in ("as it is", "t * 1")}
raise SystemExit(0 if (view, parameter, cloned) == (set(), views, set()) else 1)
PYTHON
printf 'oneflow 0.9.0; expected: nothing, three times\n'
"$folder/venv/bin/python" look.py 2>/dev/null || {
    echo "OneFlow does something else now"
    exit 1
}
