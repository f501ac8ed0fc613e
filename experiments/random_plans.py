"""Run random whole plans of a toy model on real ranks and hold them against one device.

Started on every rank by the launcher, for example
`python -m autoddl run --nproc-per-node 4 -m experiments.random_plans --mesh 2x2 --seeds 20`.
Every op, parameter and optimizer state gets a random valid signature; losses and weights after three
steps must be those of one process.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

import autoddl
from autoddl.make_plan import make_plan
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.search import problem as problems
from autoddl.search.random import random_assignment
from experiments.models.training import OPTIMIZERS, seed_weights

STEPS = 3


def main() -> None:
    """Read the command line, run all seeds, print one line each and a closing line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt", help="a module of experiments.models")
    parser.add_argument("--optimizer", default="sgd", choices=sorted(OPTIMIZERS))
    parser.add_argument("--mesh", default="4")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="rank 0 writes the results there")
    args = parser.parse_args()
    model = import_module(f"experiments.models.{args.model}")
    reference = one_device(model, args.optimizer)
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        rows.append(run_seed(model, args.optimizer, Mesh.parse(args.mesh), seed, reference))
        if flow.env.get_rank() == 0:
            print(json.dumps(rows[-1]), flush=True)
    if flow.env.get_rank() == 0:
        if args.json is not None:
            args.json.write_text(json.dumps(rows))
        worst = {key: max(row[key] for row in rows) for key in ("loss", "weights", "changed")}
        print(
            f"{len(rows)} random plans of {args.model} on [{args.mesh}]: "
            f"max |Δloss| {worst['loss']:.2e}, max |Δweight| {worst['weights']:.2e}, "
            f"signatures changed by the engine {worst['changed']}",
            flush=True,
        )


def one_device(model: Any, optimizer: str) -> tuple[list[float], list[np.ndarray]]:
    """Return losses and weights of eager training on this rank alone."""
    graph, (x, y) = model.build(**model.SIZES["toy"], optimizer=optimizer)
    module = graph.model.to(flow.nn.Module)
    seed_weights(module, 1)
    update = OPTIMIZERS[optimizer](module.parameters())
    losses = []
    for _ in range(STEPS):
        loss = graph.loss(module(x), y)
        loss.backward()
        update.step()
        update.zero_grad()
        losses.append(float(loss.numpy()))
    return losses, [p.numpy() for p in module.parameters()]


def run_seed(
    model: Any, optimizer: str, mesh: Mesh, seed: int, reference: tuple[list[float], list[Any]]
) -> dict[str, Any]:
    """Train under one random plan and return its distance from the reference."""
    graph, inputs = model.build(**model.SIZES["toy"], optimizer=optimizer)
    module = graph.model.to(flow.nn.Module)
    seed_weights(module, 1)
    problem = problems.build(autoddl.capture(graph, *inputs), mesh, profiles.load(None))
    plan = make_plan(problem, problem.result("random", random_assignment(problem, seed)))
    step = plan.apply(graph)
    begin = time.perf_counter()
    losses = [float(step(*inputs).numpy()) for _ in range(STEPS)]
    broadcast = [flow.sbp.broadcast] * mesh.ndim
    weights = [p.to_global(sbp=broadcast).to_local().numpy() for p in module.parameters()]
    return {
        "seed": seed,
        "loss": max(abs(a - b) for a, b in zip(losses, reference[0], strict=True)),
        "weights": float(
            max(np.abs(a - b).max() for a, b in zip(weights, reference[1], strict=True))
        ),
        "changed": len(step.changed_signatures),
        "redistributions": len(plan.redistributions),
        "seconds": round(time.perf_counter() - begin, 2),
    }


if __name__ == "__main__":
    main()
