#!/usr/bin/env bash
# OneFlow 0.9.0: dropouts of one size draw the same masks, layer after layer, whatever manual_seed says.
#
# One expects each nn.Dropout to draw numbers of its own, and flow.manual_seed to decide which, as it does for
# flow.rand. Seen on the CPU, in nn.Graph and eagerly: every dropout op begins a generator of its own at one fixed
# seed, so two layers have equal masks in every step, before and after manual_seed(1) and manual_seed(2). A BERT
# so drops the same positions in all its layers.
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
cat >masks.py <<'PYTHON'
import oneflow as flow
from oneflow import nn


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x):
        return self.first(x), self.second(x)


class Graph(nn.Graph):
    def __init__(self):
        super().__init__()
        self.two = Two()

    def build(self, x):
        return self.two(x)


def masks(call):
    return [tuple(int(v != 0) for v in made.numpy()) for made in call(flow.ones(64))]


seen, drawn = {"nn.Graph": [], "eager": []}, []
for seed in (1, 2):
    for mode, kind in (("nn.Graph", Graph), ("eager", Two)):
        flow.manual_seed(seed)
        call = kind()
        seen[mode].append([masks(call) for _ in range(3)])
    flow.manual_seed(seed)
    drawn.append(flow.rand(8).numpy().tolist())
right = drawn[0] != drawn[1]
print("flow.rand: another seed, other numbers:", right)
for mode, (one, other) in seen.items():
    equal, same = all(first == second for first, second in one), one == other
    steps = len({first for first, _ in one}) == 3
    print(f"{mode}: two dropouts, equal masks in every step: {equal}")
    print(f"{mode}: another seed, the same masks: {same}; another step, another mask: {steps}")
    right = right and equal and same and steps
raise SystemExit(0 if right else "OneFlow does something else now")
PYTHON
printf 'oneflow 0.9.0; expected: masks that differ by layer and by seed\n'
"$folder/venv/bin/python" masks.py 2>/dev/null
