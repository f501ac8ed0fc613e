"""A rank that catches its error and leaves with exit code 3, while the other waits for it."""

import sys

import oneflow as flow

import autoddl
from experiments.models import build


def main():
    graph, inputs = build("mlp", "toy")
    step = autoddl.optimize(graph, *inputs, mesh="2", search="data parallel").apply(graph)
    for number in range(4):
        step(*inputs).to_local().numpy()
        if flow.env.get_rank() == 1 and number == 2:
            raise RuntimeError("as asked for")


code = 0
try:
    main()
except RuntimeError as error:
    print(error)
    code = 3  # behind this line the frame of main() goes, and the step with it
sys.exit(code)
