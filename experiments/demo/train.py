"""What the demo runs with OneFlow: capture the demo GPT, or train it under given plans on all ranks.

Without plans it trains the unmodified graph in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

import autoddl
from experiments.models import gpt
from experiments.models.training import seed_weights, shifted

TEXT = Path(__file__).parent / "declaration.txt"
WARM_UP = 2
SIZES = gpt.SIZES["demo"]


def main() -> None:
    """Train under the first plan, time all of them, write the result on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="*")
    parser.add_argument("--capture", type=Path, help="save the program there, train nothing")
    parser.add_argument("--layers", type=int, default=SIZES["layers"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--timed", type=int, default=0, help="steps for every further plan")
    parser.add_argument("--result", type=Path, help="rank 0 writes losses and step times there")
    args = parser.parse_args()
    sizes = {**SIZES, "layers": args.layers}
    if args.capture is not None:
        graph, inputs = gpt.build(**sizes, optimizer="adamw")
        autoddl.capture(graph, *inputs).save(args.capture)
        return
    losses: list[float] = []
    seconds = []
    for number, file in enumerate(args.plans or [None]):
        graph, _ = gpt.build(**sizes, optimizer="adamw")
        seed_weights(graph.model.to(flow.nn.Module), seed=7)
        step = autoddl.load(file).apply(graph) if file else graph
        found, median = train(step, args.steps if number == 0 else args.timed)
        losses = losses or found
        seconds.append(median)
    if args.result is not None and flow.env.get_rank() == 0:
        args.result.write_text(json.dumps({"losses": losses, "step_s": seconds}))


def train(step: Callable[..., Any], steps: int) -> tuple[list[float], float]:
    """Return the losses and the median seconds of a step (the first ones, which compile, left out)."""
    losses, seconds = [], []
    for x, y in batches(steps):
        begin = time.perf_counter()
        losses.append(float(step(x, y).numpy()))
        seconds.append(time.perf_counter() - begin)
    return losses, statistics.median(seconds[WARM_UP:])


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
