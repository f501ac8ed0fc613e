"""Searches of steps that know no baseline, beside these: `python -m experiments.bench.own_steps`.

Plans begin with the baselines, so none of them is slower than the best one. Here the search of the step
finds what it does by itself, for every model of the zoo at a size of its paper on every mesh, with the
bundled profiles of GPUs. It is told how many of these steps are no longer than that of the best baseline,
and how many are near their bounds. Each finished row is a line of rows.jsonl at once. The exit code is 1
where a bar is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import click
import pandas as pd

from autoddl.perfmodel import profile
from autoddl.perfmodel.profile import Profile
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.solve import KNOWN
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.baselines import assignments
from autoddl.search.exact import primal_dual
from autoddl.search.result import SearchOptions
from autoddl.search.step.overlap import StepSearch
from experiments.bench.frozen.suite import ZOO
from experiments.lib import cli, frames
from experiments.lib import oneflow_problems as builder
from experiments.lib.frames import RowStore
from experiments.lib.programs import captured

LEVEL = 1e-9  # relative; steps within it take equally long
BARS = {0.01: 60, 0.05: 80}  # so many of all 96 steps are to be as near to their bounds
PROFILES, MESHES = ("h100", "a100-2x16", "v100-8x"), ("4x8", "2x8")
COLUMNS: frames.Formats = {
    "profile": "{}", "mesh": "{}", "model": "{}", "step_ms": "{:.4f}", "gap": "{:.2%}",
    "seconds": "{:.1f}", "baseline": "{}", "baseline_ms": "{:.4f}", "slower": "{:+.2%}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", ZOO)
@cli.listed("--meshes", MESHES)
@cli.listed("--profiles", PROFILES)
@click.option("--budget", default=20.0, show_default=True, help="seconds for each search")
@cli.folder("out/own_steps")
def command(
    models: Sequence[str],
    meshes: Sequence[str],
    profiles: Sequence[str],
    budget: float,
    folder: Path,
) -> int:
    """Run what is missing, print the table and write it."""
    rows, found = RowStore(folder / "rows.jsonl"), []
    for model, name, mesh in product(models, profiles, meshes):
        known = profile.load(name, device_type="cuda")
        program = replace(
            captured(folder / "programs" / f"{model}.json", model, ZOO[model]),
            device=known.device_type,
        )
        key = {
            "model": model, "mesh": mesh, "profile": known.name, "budget_s": budget,
            "fingerprint": program.fingerprint,
        }  # fmt: skip
        found.append(rows.once(key, partial(searched, program, mesh, known, budget)))
        line = "{model} {mesh} {profile}: {step_ms:.4f} ms, gap {gap:.2%}"
        print(line.format(**found[-1]), flush=True)
    return report(pd.DataFrame(found), folder)


def searched(program: Program, mesh: str, known: Profile, budget: float) -> frames.Row:
    """Return the step that is found without baselines, and that of the best baseline."""
    begin = time.perf_counter()
    network = builder.build(program, Mesh.parse(mesh, known.levels), known)
    judge = lru_cache(maxsize=KNOWN)(partial(Assigned, network))
    result = StepSearch(network, primal_dual.search, judge).search(SearchOptions(budget=budget))
    seconds = time.perf_counter() - begin
    steps = {name: judge(found).step_s for name, found in assignments(network).items()}
    best = min(steps, key=lambda name: steps[name])
    return {
        "step_ms": 1e3 * result.cost_s, "gap": result.gap, "seconds": seconds,
        "baseline": best, "baseline_ms": 1e3 * steps[best],
    }  # fmt: skip


def report(frame: pd.DataFrame, folder: Path) -> int:
    """Print the table and how many rows meet each bar; return the exit code."""
    frame["slower"] = frame.step_ms / frame.baseline_ms - 1
    print(frames.text(frame, COLUMNS))
    count, short = len(frame), int((frame.slower <= LEVEL).sum())
    bars = [("no longer than the best baseline", short, count)]
    for gap, least in BARS.items():
        within = int((frame.gap <= gap).sum())
        bars.append((f"within {gap:.0%} of their bounds", within, least))
    for what, number, least in bars:
        met = "met" if number >= least else "MISSED"
        print(f"steps {what}: {number} of {count} (at least {least}: {met})")
    frames.save(frame, folder, "own_steps")
    return 0 if all(number >= least for _, number, least in bars) else cli.MISSED


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.own_steps"))
