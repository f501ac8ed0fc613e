"""Our plans beside the whole of AMP's space: `python -m experiments.amp.against_dominoes`.

For each set-up all 449 strategies on 4 × 4 devices, cut by AMP's dynamic program, are made plans of ours
(strategy_plans.py) and simulated, whatever AMP's price of them. One that does not fit into memory makes
its forward results again for the backward pass, in all stages but the last; where that does not help it
is left out. Our plan is that of `autoddl.optimize` for the same program, profile and memory.

A row has the fastest of the 449 by one judge (AMP's eq. 10, or our simulation: OneFlow's schedule, which
is what our planner minimises, nothing overlapping, strict 1F1B), and ours by the same. "ours gains" over
1 means that ours is the faster one. The exit code is 1 where it is under 1 in OneFlow's schedule.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pandas as pd

from autoddl.search.rivals.amp.strategies import Strategy, strategies
from experiments.amp.strategy_plans import StrategyPlans
from experiments.amp.studies import STUDIES, Seconds, Study, priced, priced_plan
from experiments.amp.tables import shortened
from experiments.lib import cli, frames
from experiments.lib.frames import Row

AGAIN, UNFIT = "recomputes", "out of memory"
JUDGES = {"OneFlow s": "oneflow_s", "closed form s": "closed_form_s", "1F1B s": "strict_s"}
COLUMNS: frames.Formats = {
    "set-up": "{}", "judge": "{}", "states": "{}", "tmp": "{}", "dp": "{}", "mbs": "{}",
    "placement": "{}", "cut": "{}", "best s": "{:.3f}", "ours s": "{:.3f}", "ours gains": "{:.2f}",
    "eq. 10's choice s": "{:.3f}", "eq. 10 ranks": "{:.2f}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--set-ups", STUDIES)
@click.option("--budget", default=30.0, show_default=True, help="seconds for a plan of ours")
@cli.folder("out/amp")
def command(set_ups: Sequence[str], budget: float, folder: Path) -> int:
    """Print and write the table."""
    rows: list[Row] = []
    for study in (STUDIES[name] for name in set_ups):
        begin = time.perf_counter()
        states = pd.DataFrame(simulated(study, folder))
        took_s = time.perf_counter() - begin
        frames.save(states, folder, f"dominoes_{study.name}")
        begin = time.perf_counter()
        plan = study.ours(folder, budget)
        planned_s = time.perf_counter() - begin
        print(f"{study.name}: {len(states)} strategies simulated in {took_s:.0f} s, ours planned in "
              f"{planned_s:.0f} s: {len(plan.parts)} stages, {plan.micro_batches} micro-batches, "
              f"{plan.devices_text}")  # fmt: skip
        rows += compared(study.name, states, priced_plan(plan)._asdict())
    frame = pd.DataFrame(rows)
    print(frames.text(frame, COLUMNS))
    frames.save(frame, folder, "against_dominoes")
    judged = frame[frame["judge"] == "OneFlow s"]
    return cli.MISSED if judged["ours gains"].min() < 1 else 0


def simulated(study: Study, folder: Path) -> Iterator[Row]:
    """Yield a row for each strategy: AMP's price, and the seconds and bytes of our simulation."""
    plans, estimate = study.plans(folder), study.estimate()
    for strategy in strategies(4, 4, study.batch):
        cut = estimate.cut(strategy)
        row = {
            "tmp": strategy.tmp, "dp": strategy.dp, "mbs": strategy.mbs, "placement": placed(strategy),
            "cut": shortened(cut), "eq. 10 s": estimate.step_s(strategy, cut),
        }  # fmt: skip
        seconds, note = fitting(plans, strategy, cut)
        yield {**row, **seconds._asdict(), "note": note}


def fitting(plans: StrategyPlans, strategy: Strategy, cut: Sequence[int]) -> tuple[Seconds, str]:
    """Return the seconds of a strategy, and what it takes to fit into memory."""
    seconds = priced(plans.plan(strategy, cut))
    if seconds.fits:
        return seconds, ""
    seconds = priced(plans.plan(strategy, cut, again=True))
    return seconds, AGAIN if seconds.fits else UNFIT


def placed(strategy: Strategy) -> str:
    """Return the ranks of the first stages in words."""
    first = [" ".join(map(str, sorted(stage))) for stage in strategy.stages[:2]]
    return " | ".join([*first, "…"] if len(strategy.stages) > 2 else first)


def compared(name: str, states: pd.DataFrame, ours: dict[str, float]) -> Iterator[Row]:
    """Yield by judge the best of the strategies that fit, and ours beside it."""
    fits = states[states["note"] != UNFIT]
    chosen = fits.loc[fits["eq. 10 s"].idxmin()]
    for judge, column in JUDGES.items():
        best = fits.loc[fits[column].idxmin()]
        yield {
            "set-up": name, "judge": judge, "states": len(fits),
            **{key: best[key] for key in ("tmp", "dp", "mbs", "placement", "cut")},
            "best s": best[column], "ours s": ours[column], "ours gains": best[column] / ours[column],
            "eq. 10's choice s": chosen[column],
            "eq. 10 ranks": fits["eq. 10 s"].corr(fits[column], method="spearman"),
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(cli.run(command, "amp.against_dominoes"))
