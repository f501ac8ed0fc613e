"""What runs in a process of its own, so that its peak memory is that of one capture or one plan."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import autoddl
from autoddl import planning, solving
from autoddl.mesh_search import SEARCHED
from autoddl.sbp.program import Program
from autoddl.search.solvers import SOLVERS
from experiments.bench_search.cases import MEMORY, PROFILE, Case, Model

PARTS = BUILD, BASELINES, SEARCH, PLAN, OTHER = "build", "baselines", "search", "plan", "other"


@dataclass(frozen=True)
class Search:
    """How to search: a solver's name, its seconds, its seed, the memory of each device."""

    solver: str
    budget_s: float
    seed: int = 0
    memory: str = MEMORY


def capture(model: Model, file: Path) -> dict[str, Any]:
    """Save the program of a model whose parameters take no memory; return seconds and bytes."""
    from experiments.models import gpt

    begin = time.perf_counter()
    with autoddl.abstract_parameters():
        graph, inputs = gpt.build(**asdict(model), optimizer="adam")
    program = autoddl.capture(graph, *inputs)
    seconds = time.perf_counter() - begin
    peak = peak_bytes()
    program.save(file)
    return {"capture_s": seconds, "capture_bytes": peak}


def plan(case: Case, file: Path, search: Search) -> dict[str, Any]:
    """Plan a saved program; return the figures of the search and of the plan."""
    begin = time.perf_counter()
    program = replace(Program.load(file), device="cuda")  # the profile's, whatever traced it
    load_s, loaded = time.perf_counter() - begin, peak_bytes()
    where: dict[str, Any] = {"mesh": case.mesh} if case.mesh else {"cluster": case.cluster}
    with timed(search.solver) as parts:
        begin = time.perf_counter()
        found = autoddl.optimize(
            program, **where, profile=PROFILE, memory=search.memory,
            search=search.solver, budget=search.budget_s, seed=search.seed,
        )  # fmt: skip
        total = time.perf_counter() - begin
    parts[OTHER] = max(0.0, total - sum(parts.values()))
    limit = found.memory_limit_bytes
    fit = [row for row in found.baselines if limit is None or row.memory_bytes <= limit]
    best = min(fit, key=lambda row: row.step_s, default=found.estimate)
    return {
        "ops": len(program.ops),
        "parameters": sum(program.tensor[p.tensor].elements for p in program.parameters),
        "load_s": load_s,
        "loaded_bytes": loaded,
        **{f"{part}_s": seconds for part, seconds in parts.items()},
        "total_s": total,
        "peak_bytes": peak_bytes(),
        "chosen_mesh": str(found.mesh),
        "levels": found.mesh.describe(),
        "meshes_searched": sum(m["outcome"] == SEARCHED for m in found.search.get("meshes", ()))
        or 1,
        "solver": found.search["solver"],
        "lower_bound_s": found.search["lower_bound_s"],
        "gap": found.search["gap"],
        "cost_s": found.estimate.compute_s + found.estimate.communication_s,
        "step_s": found.estimate.step_s,
        "memory_bytes": found.estimate.memory_bytes,
        "best_baseline": best.name,
        "best_baseline_step_s": best.step_s,
    }


@contextmanager
def timed(solver: str) -> Iterator[dict[str, float]]:
    """Collect the seconds of the parts of autoddl.optimize while it runs."""
    seconds = dict.fromkeys(PARTS, 0.0)

    def clocked(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                seconds[part] += time.perf_counter() - begin

        return run

    places = (
        (planning, "build", BUILD), (solving, "assignments", BASELINES), (solving, "make_plan", PLAN),
    )  # fmt: skip
    with ExitStack() as patches:
        for module, name, part in places:
            work = clocked(part, getattr(module, name))
            patches.enter_context(mock.patch.object(module, name, work))
        if solver in SOLVERS:
            wrapped = {solver: clocked(SEARCH, SOLVERS[solver])}
            patches.enter_context(mock.patch.dict(SOLVERS, wrapped))
        yield seconds


def peak_bytes() -> int:
    """Return the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
