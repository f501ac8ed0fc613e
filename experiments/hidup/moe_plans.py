"""A plan of one of the paper's models, as a row of numbers: what all studies tabulate."""

from __future__ import annotations

import time
from typing import Any

import autoddl
from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from experiments.lib.frames import Row

PROFILE = "v100-8x"
MOE = "feed_forward"  # what the layers with experts are called in a block
PRODUCTS = {"gate": 0, "dispatch": 1, "experts": 2, "combine": 4}
"""Of the products of an expert layer, forward, by their places: the third and fourth are the experts'."""


def row(
    program: Program, mesh: str, profile: Profile, budget: float, **options: Any
) -> tuple[Row, PlanValue]:
    """Return a plan, and its step, bound and search beside the baselines that the paper has.

    Expert parallelism stands for DeepSpeed and FastMoE, data parallelism for DDP and Horovod.
    """
    begin = time.perf_counter()
    plan = autoddl.optimize(program, mesh=mesh, profile=profile, budget=budget, **options)
    seconds = time.perf_counter() - begin
    estimate, baselines = plan.estimate, {b.name: b for b in plan.baselines}
    best = min(baselines.values(), key=lambda b: b.step_s)
    found: Row = {
        "step_s": estimate.step_s, "bound_s": plan.search.lower_bound_s, "gap": plan.search.gap,
        "search_s": seconds, "compute_s": estimate.compute_s,
        "communication_s": estimate.communication_s, "overlap_s": estimate.overlap_s,
        "memory_gb": estimate.memory_bytes / 1e9, "best": best.name, "best_s": best.step_s,
    }  # fmt: skip
    for name in ("data parallel", "expert parallel"):
        known = baselines.get(name)
        found[f"{name.partition(' ')[0]}_s"] = known.step_s if known else None
        found[f"{name.partition(' ')[0]}_gb"] = known.memory_bytes / 1e9 if known else None
    return found | placement(plan), plan


def placement(plan: PlanValue) -> Row:
    """Return how many parameters are whole on every GPU, wholly cut, and cut along some axes only.

    `whole_between` are those that every unit of the mesh's first axis has whole, all machines on two.
    """
    kept = [plan.variables[p.tensor] for p in plan.program.parameters]
    whole = sum(not any(sbp.is_split for sbp in state) for state in kept)
    cut = sum(all(sbp.is_split for sbp in state) for state in kept)
    between = sum(not state[0].is_split for state in kept)
    partly = len(kept) - whole - cut
    return {"replicated": whole, "cut": cut, "partly": partly, "whole_between": between}


def forms(plan: PlanValue) -> list[Row]:
    """Return the states of the operands of the products of every expert layer, forward.

    The layer's `input` is the gate's first operand, in the state in which it is made.
    """
    found, program = [], plan.program
    maker = {tensor: (op.name, o) for op in program.ops for o, tensor in op.outputs}
    for module, ops in _products(program).items():
        made, operand = maker[program.op[ops[0]].inputs[0][1]]
        row = {"layer": module, "input": str(plan.signatures[made][operand])}
        for name, place in PRODUCTS.items():
            signature = plan.signatures[ops[place]]
            row[name] = " × ".join(str(signature[o]) for o, _ in program.op[ops[place]].inputs)
        found.append(row)
    return found


def _products(program: Program) -> dict[str, list[str]]:
    """Return the forward products by expert layer: those in front of the loss come first."""
    found: dict[str, list[str]] = {}
    for op in program.ops:
        module, marked, _ = op.name.partition(f".{MOE}")
        if marked and op.type in ("broadcast_matmul", "batch_matmul", "matmul"):
            found.setdefault(module, []).append(op.name)
    return {m: ops for m, ops in found.items() if any(".gate" in op for op in ops)}
