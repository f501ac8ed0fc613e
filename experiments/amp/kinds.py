"""What knowing the kinds of devices gains, in simulation: `python -m experiments.amp.kinds`.

The GPT of AMP's tables on 3 nodes of V100 and one of T4. Beside the plan that knows the kinds stand the
best plans that take all devices for V100, for T4, or for as fast as both on average: each number of equal
stages and micro-batches is planned under that belief, then priced on the devices that are there. The exit
code is 1 where knowing gains less than 1.1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pandas as pd

import autoddl
from autoddl.perfmodel.pipeline.pipeline_timeline import simulate
from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from experiments.amp import profiles, setups
from experiments.lib import cli, frames, kind_blind
from experiments.lib.frames import Row
from experiments.lib.programs import captured

BAR = 1.1  # of the step in OneFlow's schedule; beside it stand the closed form and strict 1F1B
WEIGHTS = {"all V100": 0.0, "all T4": 1.0, "the average": 0.25}  # of T4 in the belief
COLUMNS: frames.Formats = {
    "plan": "{}", "stages": "{}", "micro-batches": "{}", "believed s": "{:.3f}", "step s": "{:.3f}",
    "knowing gains": "{:.2f}", "closed form s": "{:.3f}", "1F1B s": "{:.3f}",
}  # fmt: skip


@click.command(help=__doc__)
@click.option("--seconds", default=2.0, show_default=True, help="for each blind candidate")
@cli.folder("out/amp")
def command(seconds: float, folder: Path) -> int:
    """Print and write the table."""
    program = gpt(folder)
    known = profiles.profile(micro_batch(program, setups.BATCH))
    cluster = profiles.cluster("mixed")
    begin = time.perf_counter()
    plan = autoddl.optimize(program, cluster=cluster, profile=known, budget=30.0)
    took_s = time.perf_counter() - begin
    ours = {
        "plan": "knows the kinds", "stages": len(plan.parts), "micro-batches": plan.micro_batches,
        "believed s": plan.estimate.step_s, "step s": plan.estimate.step_s, "knowing gains": 1.0,
        "closed form s": plan.search.lower_bound_s / (1 - plan.search.gap), "1F1B s": in_1f1b(plan),
    }  # fmt: skip
    rows: list[Row] = [ours]
    for name, weight in WEIGHTS.items():
        found = list(blind(program, known, weight, seconds))
        best = min(found, key=lambda row: row["step s"])
        rows.append({"plan": name, **best, "knowing gains": best["step s"] / plan.estimate.step_s})
    frame = pd.DataFrame(rows)
    print(frames.text(frame, COLUMNS))
    print(
        f"planned in {took_s:.1f} s; {plan.search.gap:.0%} above the bound for all cuts and states"
    )
    frames.save(frame, folder, "kinds")
    return cli.MISSED if frame["knowing gains"][1:].min() < BAR else 0


def gpt(folder: Path) -> Program:
    """Return the program of the GPT of tables 6 to 9."""
    sizes = {
        "layers": len(setups.BLOCKS), "width": setups.WIDTH, "heads": 16, "sequence": setups.LENGTH,
        "vocabulary": setups.VOCABULARY, "batch": setups.BATCH,
    }  # fmt: skip
    return captured(folder / "programs" / "gpt.json", "gpt", "toy", **sizes)


def blind(program: Program, known: Profile, weight: float, seconds: float) -> Iterator[Row]:
    """Yield what each equal plan takes that is made in the belief that all devices are alike."""
    believed = kind_blind.mixture(known, ("v100", "t4"), weight)
    cluster, memory = profiles.cluster("mixed"), profiles.MEMORY_BYTES
    for plan in kind_blind.plans(program, cluster, known, believed, seconds, memory):
        real = plan.real
        yield {
            "stages": real.stages, "micro-batches": real.micro_batches,
            "believed s": plan.believed_s, "step s": real.timeline.step_s,
            "closed form s": real.bounded_s,
            "1F1B s": simulate(replace(real.step, schedule="1f1b")).step_s,
        }  # fmt: skip


def in_1f1b(plan: PlanValue) -> float:
    """Return the seconds of a plan's step under strict 1F1B."""
    return simulate(replace(plan.pipeline_step, schedule="1f1b")).step_s


if __name__ == "__main__":
    sys.exit(cli.run(command, "amp.kinds"))
