#!/usr/bin/env bash
# OneFlow 0.9.0: an nn.Graph that accumulates gradients may update a weight before the backward pass has read it.
#
# One expects set_gradient_accumulation_steps(2) to train as a loop that adds up the gradients of two halves of
# the batch, to rounding. Seen on the CPU, in a residual network of linear layers: in most processes the loss after
# one step is 3 % off, and not by the same amount in each. An update waits for the sum of its own gradients alone;
# what multiplies gradients by the old weight, for the layers before, reads a variable that may be new by then.
# With one step of accumulation losses are those of eager training.
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
cat >train.py <<'PYTHON'
import sys

import numpy as np
import oneflow as flow
from oneflow import nn

STEPS, RATE = 4, 0.02


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x):
        return flow.relu(x + self.body(x))


def network():
    net = nn.Sequential(nn.Linear(16, 32), Block(), Block(), Block(), Block(), nn.Linear(32, 4))
    rng = np.random.default_rng(1)
    for weight in net.parameters():
        values = rng.normal(0, 0.2, tuple(weight.shape)).astype(np.float32)
        weight.data.copy_(flow.tensor(values))
    return net


class Graph(nn.Graph):
    def __init__(self, net, parts):
        super().__init__()
        self.net = net
        self.add_optimizer(flow.optim.SGD(net.parameters(), lr=RATE))
        if parts > 1:
            self.config.set_gradient_accumulation_steps(parts)

    def build(self, x, y):
        loss = ((self.net(x) - y) ** 2).mean()
        loss.backward()
        return loss


def loop(x, y, parts):
    net, losses = network(), []
    optimizer = flow.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        seen = []
        for a, b in zip(x.chunk(parts, dim=0), y.chunk(parts, dim=0)):
            loss = ((net(a) - b) ** 2).mean()
            (loss / parts).backward()
            seen.append(float(loss.numpy()))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(np.mean(seen))
    return np.array(losses)


rng, parts = np.random.default_rng(0), int(sys.argv[1])
x, y = (flow.tensor(rng.normal(size=(8, n)).astype(np.float32)) for n in (16, 4))
graph, expected = Graph(network(), parts), loop(x, y, parts)
found = np.array([float(graph(x, y).numpy().mean()) for _ in range(STEPS)])
print(float(np.abs(found / expected - 1).max()))
PYTHON
cat >judge.py <<'PYTHON'
import sys

whole, parts = (list(map(float, sys.argv[n].split())) for n in (1, 2))
print(f"one step: losses are off by {max(whole):.1e} at most, in {len(whole)} processes")
print("two steps of accumulation, by process:", ", ".join(f"{100 * off:.4f} %" for off in parts))
right = max(whole) < 1e-5 and max(parts) > 1e-3
raise SystemExit(0 if right else "OneFlow does something else now")
PYTHON
printf 'oneflow 0.9.0; expected: losses of a graph that accumulates are those of a loop, to 1e-5\n'
whole=$(for _ in 1 2; do "$folder/venv/bin/python" train.py 1 2>/dev/null; done)
parts=$(for _ in 1 2 3 4 5 6 7 8; do "$folder/venv/bin/python" train.py 2 2>/dev/null; done)
"$folder/venv/bin/python" judge.py "$whole" "$parts"
