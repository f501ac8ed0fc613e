"""What the ranks of the third proof run: one device as reference, or random plans against it.

Started by experiments.proofs.execution through the launcher.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow
from msgspec.structs import replace

import autoddl
from autoddl.api import Plan
from autoddl.engine.oneflow.capture.shadow import modules
from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.engine.oneflow.run.agree import from_rank_0
from autoddl.perfmodel import profile as profiles
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rewrites.halves import halves
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import synchronised
from autoddl.sbp.rewrites.in_parts.whole_masks import with_whole_masks
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.rivals.random_sampling import random_assignment
from experiments import models
from experiments.lib import oneflow_problems as builder
from experiments.models.training import seed_weights
from experiments.proofs.execution import IN_HALVES, plan_row, reference_of, rows_of

STEPS = 3
Arrays = dict[str, np.ndarray[Any, Any]]


def main(argv: list[str]) -> None:
    """Run `reference FOLDER MODEL …` or `plans FOLDER MESH MODEL:SEED …`."""
    folder = Path(argv[1])
    if argv[0] == "reference":
        for model in argv[2:]:
            with reference_of(folder, model).open("wb") as file:
                np.savez(file, **one_device(model))
        return
    jobs = [job.split(":") for job in argv[3:]]
    for model, mine in groupby(jobs, key=itemgetter(0)):
        run_plans(folder, argv[2], model, [int(seed) for _, seed in mine])


def fresh(model: str, **sizes: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a new toy graph with reproducible weights and random numbers, and its inputs."""
    flow.manual_seed(1)
    graph, inputs = models.build(model, **sizes)
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


def run_plans(folder: Path, place: str, model: str, seeds: list[int]) -> None:
    """Train under one random plan per seed; rank 0 writes a line for each.

    `place` is a mesh, and may say that the plans are of two halves of the batch.
    """
    mesh, duplex = place.removesuffix(IN_HALVES), place.endswith(IN_HALVES)
    reference: Arrays = dict(np.load(reference_of(folder, model)))
    graph, inputs = fresh(model)
    program = autoddl.capture(graph, *inputs)  # on every rank: the engine counts graphs
    problems: Any = [None]
    if flow.env.get_rank() == 0:
        profile = profiles.load(None)
        profile = replace(
            profile, overlap=dict.fromkeys(profile.levels, 1.0)
        )  # so ops get an order
        program = halves(micro_batch(program, 2)) if duplex else program
        in_parts = program
        if not duplex:  # halves have none; else every other plan has BatchNorm and dropout in parts
            in_parts = with_whole_masks(synchronised(program), alike=ONEFLOW.masks_alike)
        problems = [
            builder.build(one, Mesh.parse(mesh), profile)
            for one in ([program] if in_parts is program else [program, in_parts])
        ]
    for seed in seeds:
        begin = time.perf_counter()
        graph, inputs = fresh(model)
        problem = problems[seed % len(problems)]
        plan = Plan.of(from_rank_0(partial(random_plan, problem, seed, duplex)))
        step = plan.apply(graph)
        losses = np.array([step(*inputs).numpy() for _ in range(STEPS)])
        trained = variables(graph)
        far = {name: _distance(array, reference[name]) for name, array in trained.items()}
        moved = (_distance(reference[f"before {name}"], reference[name]) for name in trained)
        if flow.env.get_rank() == 0:
            figures: dict[str, Any] = {
                "loss": _distance(losses, reference["losses"]), "weights": max(far.values()),
                "moved": max(moved), "changed": len(step.changed_signatures),
                "redistributions": len(plan.redistributions), "ordered": len(plan.layout.after),
                "more": len(plan.program.ops) - len(program.ops),
                "seconds": round(time.perf_counter() - begin, 2),
            }  # fmt: skip
            rows_of(folder, model, place).add(plan_row(model, place, seed, **figures))
        step.close()


def random_plan(problem: CostNetwork, seed: int, duplex: bool) -> PlanValue:
    found = problem.result("random", random_assignment(problem, seed))
    return dataclasses.replace(make_plan(problem, found), duplex=duplex)


def _distance(a: Any, b: Any) -> float:
    return float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float)), initial=0.0))


if __name__ == "__main__":
    main(sys.argv[1:])
