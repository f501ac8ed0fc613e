"""What runs in a process of its own, so that its peak memory is that of one plan.

`python -m experiments.bench.search.planned PROGRAM JSON` plans a saved program and prints the figures of
the search and of the plan. Building the problem and all baselines are timed once more, by themselves.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from experiments.lib import oneflow_problems as builder
from experiments.lib.programs import peak_bytes

PARTS = ("load", "build", "baselines", "search", "total")


def plan(file: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Plan a saved program with these options of `autoddl.optimize`; return the figures."""
    begin = time.perf_counter()
    program = replace(Program.load(file), device="cuda")  # the profile's, whatever traced it
    load_s = time.perf_counter() - begin
    begin = time.perf_counter()
    found = autoddl.optimize(program, **options)
    total_s = time.perf_counter() - begin
    peak = peak_bytes()
    profile = profiles.load(options["profile"], device_type="cuda")
    mesh = Mesh.parse(found.mesh.describe(), profile.levels)
    begin = time.perf_counter()
    problem = builder.build(program, mesh, profile)
    built = time.perf_counter()
    assignments(problem)
    limit = found.memory_limit_bytes
    fit = [row for row in found.baselines if limit is None or row.memory_bytes <= limit]
    best = min(fit, key=lambda row: row.step_s, default=found.estimate)
    return {
        "ops": len(program.ops),
        "parameters": sum(program.tensor[p.tensor].elements for p in program.parameters),
        "load_s": load_s,
        "build_s": built - begin,
        "baselines_s": time.perf_counter() - built,
        "search_s": found.search.seconds,
        "total_s": total_s,
        "peak_bytes": peak,
        "chosen_mesh": str(found.mesh),
        "solver": found.search.solver,
        "lower_bound_s": found.search.lower_bound_s,
        "gap": found.search.gap,
        "cost_s": found.estimate.compute_s + found.estimate.communication_s,
        "step_s": found.estimate.step_s,
        "memory_bytes": found.estimate.memory_bytes,
        "best_baseline": best.name,
        "best_baseline_step_s": best.step_s,
    }


if __name__ == "__main__":
    try:
        figures = plan(sys.argv[1], json.loads(sys.argv[2]))
    except AutoDDLError as error:
        sys.exit(str(error))
    print(json.dumps(figures))
