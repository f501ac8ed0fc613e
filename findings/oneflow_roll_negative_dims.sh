#!/usr/bin/env bash
# OneFlow 0.9.0: `flow.roll` does not count negative dims from the end.
#
# Expected, as in NumPy and PyTorch: roll(x, 1, -1) shifts along the last dim, roll(x, 1, -2) along the first of two.
# Seen: dims=-1 shifts the flattened tensor, as if no dims were given; dims=-2 changes nothing. Neither is refused.
#
# Needs CPython 3.10 (PYTHON=/path/to/python3.10). Exits 0 while OneFlow does what is described here.

set -euo pipefail
python=${PYTHON:-python3.10}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-input --disable-pip-version-check \
    oneflow==0.9.0 nvidia-cudnn-cu11==8.5.0.96 nvidia-cublas-cu11==11.10.3.66 'numpy<2' 'protobuf<4'
cd "$folder"
venv/bin/python - <<'PYTHON' 2>/dev/null # where OneFlow says that there is no GPU
import sys

import numpy as np
import oneflow as flow

x = np.arange(6).reshape(2, 3)
whole = np.roll(x, 1)
print("oneflow", flow.__version__, "numpy", np.__version__)
for dims, seen in ((-1, whole), (-2, x), (1, np.roll(x, 1, 1)), (0, np.roll(x, 1, 0))):
    got = flow.roll(flow.tensor(x), 1, dims).numpy()
    print(f"roll(x, 1, {dims}): expected {np.roll(x, 1, dims).tolist()}, got {got.tolist()}")
    if not (got == seen).all():
        print(f"dims={dims}: this has changed")
        sys.exit(1)
PYTHON
