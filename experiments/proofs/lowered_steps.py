"""Prove whole training steps over shares: lowered to what ranks do, and executed on simulated ranks.

Models of the zoo are planned by data parallelism and at random, over all signatures that are right. Of
each layout the instructions of all ranks are checked against the program (`sbp.local_program.triples`)
and executed in NumPy: every tensor, what updates leave included, is the one that one device makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile
from autoddl.sbp.local_program.instructions import Communication, LocalProgram
from autoddl.sbp.local_program.local_lowering import lower
from autoddl.sbp.local_program.triples import check
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_program import execute, run_program
from autoddl.sbp.numpy_oracle.simulated_tensors import Array, assemble, close, shard
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.baselines import BASELINES
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from experiments.lib.programs import captured
from experiments.models import ZOO
from experiments.proofs.boxings import MESHES, PRICES

BATCH = 24  # into 3 units and into 8: the meshes of two axes have so many
LAYOUTS = 3  # of each model and mesh: data parallelism, and random ones


@dataclass(frozen=True)
class StepResult:
    """What was found of a step in one layout: how many instructions it is lowered to, and faults."""

    model: str
    mesh: str
    layout: int
    instructions: int
    communications: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class LoweredReport:
    """The steps by model, mesh and layout, and the seed of all that no op makes."""

    seed: int
    steps: tuple[StepResult, ...]

    columns = ("model", "layouts", "instructions", "communications", "wrong")

    @property
    def faults(self) -> tuple[str, ...]:
        """Say, one line each, which tensors are wrong, or which instruction is refused."""
        return tuple(
            f"{s.model} on {s.mesh}, layout {s.layout}: {line}"
            for s in self.steps
            for line in s.wrong
        )

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return one row per model."""
        for model, group in groupby(self.steps, key=lambda step: step.model):
            steps = list(group)
            sums = (sum(s.instructions for s in steps), sum(s.communications for s in steps))
            yield (model, *map(str, (len(steps), *sums, sum(len(s.wrong) for s in steps))))

    def summary(self) -> str:
        """Sum up in one line."""
        return (
            f"{len(self.steps)} layouts of {len({s.model for s in self.steps})} models: "
            f"{sum(s.instructions for s in self.steps)} instructions run on simulated ranks, "
            f"{sum(s.communications for s in self.steps)} of them communications, "
            f"{sum(bool(s.wrong) for s in self.steps)} layouts wrong"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything that was seen, as plain JSON values."""
        return asdict(self)


def run(
    folder: Path,
    *,
    seed: int = 0,
    models: Collection[str] = tuple(ZOO),
    progress: Callable[[int, int], None] | None = None,
) -> LoweredReport:
    """Run steps of these models on all meshes; their programs are kept in `folder`.

    `progress` is told how many models and meshes are done, and of how many.
    """
    cases, steps = list(product(models, MESHES)), list[StepResult]()
    for done, (model, mesh) in enumerate(cases, 1):
        program = captured(folder / f"{model}-{BATCH}.json", model, batch=BATCH)
        steps += _steps(model, program, Mesh.parse(mesh), seed)
        if progress is not None:
            progress(done, len(cases))
    return LoweredReport(seed, tuple(steps))


def _steps(model: str, program: Program, mesh: Mesh, seed: int) -> Iterable[StepResult]:
    problem = build(program, mesh, profile.load(PRICES), engine=ONEFLOW.whole_space())
    values = whole_values(program, np.random.default_rng(seed))
    for number in range(LAYOUTS):
        local = lowered(problem, mesh, number and seed + number)
        boxed = sum(isinstance(each, Communication) for each in local.instructions)
        wrong = tuple(_wrong(local, values))
        yield StepResult(model, str(mesh), number, len(local.instructions), boxed, wrong)


def _wrong(local: LocalProgram, values: Mapping[str, Array]) -> list[str]:
    try:
        check(local)
        return unlike(local, values)
    except (AutoDDLError, ValueError) as error:  # of NumPy, where parts do not fit
        return [str(error)]


def lowered(problem: CostNetwork, mesh: Mesh, seed: int) -> LocalProgram:
    """Return what a random assignment is lowered to; for seed 0 data parallelism, where there is."""
    point = None if seed else BASELINES["data parallel"](problem)
    return lower(assigned_layout(problem, point or random_assignment(problem, seed)), mesh)


def whole_values(program: Program, rng: np.random.Generator) -> dict[str, Array]:
    """Draw all that no op makes; states of optimizers, rates and statistics are positive."""
    found: dict[str, Array] = {}
    for tensor in program.tensors:
        if tensor.name in program.producer:
            continue
        if "int" in tensor.dtype or tensor.dtype == "bool":
            found[tensor.name] = rng.integers(0, 2, tensor.shape)
        elif tensor.role in ("state", "system", "buffer"):
            found[tensor.name] = rng.uniform(0.5, 1.0, tensor.shape)
        else:
            found[tensor.name] = rng.normal(0.1, 0.5, tensor.shape)
    return found


def unlike(local: LocalProgram, values: Mapping[str, Array]) -> list[str]:
    """Return what simulated ranks hold in the end that is not what one device has."""
    rng, cuts, tensor = np.random.default_rng(1), local.mesh.cuts, local.program.tensor
    begun = [each.property for each in local.given]
    found = execute(local, {name: shard(values[name], s, cuts, rng) for name, s in begun})
    expected = run_program(local.program, values, updates=True)
    missing = sorted(set(expected) - {held.tensor for held in found})
    kept = {each.property for each in local.kept}
    updated = {held.tensor for held in kept} - {*local.program.outputs}
    checked = [held for held in found if held in kept or held.tensor not in updated]
    return missing + [
        str(held)
        for held in checked  # in other states what is updated is as it was before
        if not close(
            assemble(found[held], held.state, cuts, tensor[held.tensor].shape),
            expected[held.tensor],
        )
    ]
