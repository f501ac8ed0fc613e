"""What act one runs with OneFlow: capture the demo GPT, or train it on all ranks under a plan.

Without a plan it trains the unmodified graph in one process.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import oneflow as flow

import autoddl
from experiments.models import gpt
from experiments.models.training import seed_weights, shifted

TEXT = Path(__file__).parent / "declaration.txt"
SIZES = gpt.SIZES["demo"]


def main() -> None:
    """Train, and write the losses on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", nargs="?")
    parser.add_argument("--capture", type=Path, help="save the program there, train nothing")
    parser.add_argument("--layers", type=int, default=SIZES["layers"])
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--result", type=Path, help="rank 0 writes the losses there")
    args = parser.parse_args()
    graph, inputs = gpt.build(**{**SIZES, "layers": args.layers}, optimizer="adamw")
    if args.capture is not None:
        autoddl.capture(graph, *inputs).save(args.capture)
        return
    seed_weights(graph.model.to(flow.nn.Module), seed=7)
    step = autoddl.load(args.plan).apply(graph) if args.plan else graph
    losses = [float(step(x, y).numpy()) for x, y in batches(args.steps)]
    if args.result is not None and flow.env.get_rank() == 0:
        args.result.write_text(json.dumps(losses))


def batches(steps: int) -> list[tuple[flow.Tensor, flow.Tensor]]:
    """Return (bytes, next bytes) windows of the text, the same ones on every rank."""
    text = np.frombuffer(TEXT.read_bytes(), dtype=np.uint8).astype(np.int64)
    rng = np.random.default_rng(3)
    length = int(SIZES["sequence"])
    found = []
    for _ in range(steps):
        starts = rng.integers(0, len(text) - length - 1, int(SIZES["batch"]))
        found.append(shifted(np.stack([text[s : s + length + 1] for s in starts])))
    return found


if __name__ == "__main__":
    main()
