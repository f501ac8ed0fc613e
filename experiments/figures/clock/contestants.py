"""The plans that run against each other: ours, each expert's on its best mesh, OneFlow's auto-parallel.

All of ours and the experts' are made as `autoddl.optimize` does, under the testbed's own profile, so that
an expert's mesh and degrees are the best ones by the same prices. Plans of equal states are one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autoddl
from autoddl.api import Plan
from autoddl.errors import AutoDDLError
from autoddl.planner import choose
from autoddl.sbp.program import Program
from autoddl.search.baselines import BASELINES
from experiments.figures.clock.clock_workloads import ClockWorkload
from experiments.lib.oneflow_problems import read

OURS, DATA, PEER = "ours", "data parallel", "OneFlow"
EXPERTS = tuple(name for name in BASELINES if name != DATA)


@dataclass(frozen=True)
class Contestant:
    """A plan by one or more `names`; its `file`, and step, or neither of OneFlow's own on a `mesh`."""

    names: tuple[str, ...]
    mesh: str
    file: Path | None = None
    predicted_s: float = math.inf

    @property
    def key(self) -> str:
        """Return its first name."""
        return self.names[0]

    def plan(self) -> Plan:
        """Return the plan; not of OneFlow's own."""
        assert self.file is not None
        return autoddl.load(self.file)


def contestants(
    one: ClockWorkload, program: Program, profile: str, folder: Path
) -> list[Contestant]:
    """Return all of a workload's program; plans that the folder does not have yet are made."""
    folder.mkdir(parents=True, exist_ok=True)
    plans: dict[str, tuple[Path, Plan]] = {}
    for name in (OURS, *BASELINES):
        file = folder / f"{name.replace(' ', '-')}.json"
        refused = file.with_suffix(".refused")
        if not file.exists() and not refused.exists():
            more: dict[str, Any] = {} if name == OURS else {"search": name}
            try:
                asked = read(program, (one.nodes, one.ranks), profile=profile, **more)
                Plan.of(choose.best(asked, 1)[0]).save(file)
            except AutoDDLError as error:  # an expert that does not apply
                if name == OURS:
                    raise
                refused.write_text(f"{error}\n")
        if file.exists():
            plans[name] = file, autoddl.load(file)
    return [*_unlike(plans), *_peers(one)]


def _unlike(plans: dict[str, tuple[Path, Plan]]) -> list[Contestant]:
    found: dict[Any, list[str]] = {}
    for name, (_, plan) in plans.items():
        found.setdefault((str(plan.mesh), plan.states), []).append(name)
    every = [(tuple(names), *plans[names[0]]) for names in found.values()]
    return [
        Contestant(names, plan.mesh.describe(), file, plan.estimate.step_s)
        for names, file, plan in every
    ]


def _peers(one: ClockWorkload) -> list[Contestant]:
    """Return OneFlow's auto-parallel, on ranks in a row and as the testbed has them."""
    shapes: Sequence[tuple[int, ...]] = [(one.nodes * one.ranks,), (one.nodes, one.ranks)]
    names = [PEER, f"{PEER}, two axes"]
    return [
        Contestant((name,), "x".join(map(str, shape)))
        for name, shape in zip(names, shapes, strict=True)
        if min(shape) > 1
    ]
