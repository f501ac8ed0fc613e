"""What the ranks of the third proof run: one device as reference, or random plans against it.

Started by experiments.proofs.execution through the launcher.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

import autoddl
from autoddl.engine.agree import from_rank_0
from autoddl.engine.shadow import modules
from autoddl.make_plan import make_plan
from autoddl.perfmodel import profile as profiles
from autoddl.plan import Plan
from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.problem import Problem
from autoddl.search.random import random_assignment
from experiments import models
from experiments.models.training import seed_weights
from experiments.proofs.execution import PlanRun, append

STEPS = 3
Arrays = dict[str, np.ndarray[Any, Any]]


def main(argv: list[str]) -> None:
    """Run `reference MODEL FILE` or `plans MODEL REFERENCE MESH FILE SEED,SEED,…`."""
    if argv[0] == "reference":
        np.savez(argv[2], **one_device(argv[1]))
    else:
        model, reference, mesh, file, seeds = argv[1:]
        run_plans(
            model, mesh, [int(s) for s in seeds.split(",")], dict(np.load(reference)), Path(file)
        )


def fresh(model: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a new toy graph with reproducible weights, and its inputs."""
    graph, inputs = models.build(model)
    for root in modules(graph):
        seed_weights(root, 1)
    return graph, inputs


def one_device(model: str) -> Arrays:
    """Return the losses of three steps of the graph itself, and its variables before and after."""
    graph, inputs = fresh(model)
    before = {f"before {name}": array for name, array in variables(graph).items()}
    losses = np.array([graph(*inputs).numpy() for _ in range(STEPS)])
    return {"losses": losses, **before, **variables(graph)}


def variables(graph: Any) -> Arrays:
    """Return parameters and buffers by name, as whole arrays."""
    found = {}
    for number, root in enumerate(modules(graph)):
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            if tensor.is_global:
                whole = [flow.sbp.broadcast] * len(tensor.sbp)
                tensor = tensor.to_global(sbp=whole).to_local()
            found[f"{number}.{name}"] = tensor.numpy().copy()  # numpy() may share the memory
    return found


def run_plans(model: str, mesh: str, seeds: list[int], reference: Arrays, file: Path) -> None:
    """Train under one random plan per seed; rank 0 writes a line for each."""
    graph, inputs = fresh(model)
    program = autoddl.capture(graph, *inputs)  # on every rank: the engine counts graphs
    problem: Any = None
    if flow.env.get_rank() == 0:
        problem = builder.build(program, Mesh.parse(mesh), profiles.load(None))
    for seed in seeds:
        begin = time.perf_counter()
        graph, inputs = fresh(model)
        plan = from_rank_0(partial(_random_plan, problem, seed))
        step = plan.apply(graph)
        losses = np.array([step(*inputs).numpy() for _ in range(STEPS)])
        trained = variables(graph)
        result = PlanRun(
            model,
            mesh,
            seed,
            loss=_distance(losses, reference["losses"]),
            weights=max(_distance(array, reference[name]) for name, array in trained.items()),
            moved=max(_distance(reference[f"before {name}"], reference[name]) for name in trained),
            changed=len(step.changed_signatures),
            redistributions=len(plan.redistributions),
            seconds=round(time.perf_counter() - begin, 2),
        )
        if flow.env.get_rank() == 0:
            append(file, result)


def _random_plan(problem: Problem, seed: int) -> Plan:
    return make_plan(problem, problem.result("random", random_assignment(problem, seed)))


def _distance(a: Any, b: Any) -> float:
    return float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float)), initial=0.0))


if __name__ == "__main__":
    main(sys.argv[1:])
