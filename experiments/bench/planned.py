"""What runs in a process of its own, so that its peak memory is that of one plan.

`python -m experiments.bench.planned PROGRAM JSON` plans a saved program with these options of
`autoddl.optimize` and prints figures of the search and of the plan.
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
from autoddl.sbp.program import Program
from experiments.lib.programs import peak_bytes


def figures_of(file: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Plan a saved program; return the figures."""
    program = replace(Program.load(file), device="cuda")  # the profile's, whatever traced it
    begin = time.perf_counter()
    found = autoddl.optimize(program, **options)
    total_s, estimate, limit = time.perf_counter() - begin, found.estimate, found.memory_limit_bytes
    fit = [row for row in found.baselines if limit is None or row.memory_bytes <= limit]
    best = min(fit, key=lambda row: row.step_s, default=None)
    return {
        "ops": len(program.ops), "total_s": total_s, "peak_bytes": peak_bytes(),
        "chosen_mesh": str(found.mesh), "gap": found.search.gap,
        "cost_s": estimate.compute_s + estimate.communication_s, "step_s": estimate.step_s,
        "best_baseline": best.name if best else "none",
        "best_baseline_step_s": best.step_s if best else estimate.step_s,
    }  # fmt: skip


if __name__ == "__main__":
    try:
        figures = figures_of(sys.argv[1], json.loads(sys.argv[2]))
    except AutoDDLError as error:
        sys.exit(str(error))
    print(json.dumps(figures))
