"""How planning time grows with layers and GPUs, figure 14: `python -m experiments.hidup.growth`.

BERT-SGMoE of 4 to 32 layers on 4 GPUs, and of 6 layers on 8 to 8192 GPUs in machines of eight, with an
expert and a sequence for each. A process plans a small case first, so that no case waits for compiled
loops; cases take turns, and of several runs the median counts. "Sum" is the search for the least sum of
compute and communication, which is proven; the search for the shortest step ends when nothing better
comes, or when its budget does. Run it where nothing else runs. The exit code is 1 where a bar is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pandas as pd

import autoddl
from autoddl.search.reductions.objective import SUM, TIME
from experiments.hidup.bandwidths import MAIN
from experiments.hidup.moe_models import MODELS
from experiments.hidup.moe_plans import PROFILE
from experiments.lib import cli, figures, frames
from experiments.lib.frames import Row, RowStore

LAYERS, GPUS = "layers", "GPUs"
ROOMY = "1000TB"  # time is looked at, not what fits
FLAT = 2.0
"""By what factor the seconds may grow with GPUs; with layers they may grow as these do."""
COLUMNS: frames.Formats = {
    "group": "{}", "size": "{}", "objective": "{}", "ops": "{:,}", "seconds": "{:.2f}",
    "gap": "{:.1%}", "runs": "{}",
}  # fmt: skip


@dataclass(frozen=True)
class GrowthCase:
    """A BERT-SGMoE of so many layers on so many GPUs, of a group that grows with one of them."""

    group: str
    layers: int
    gpus: int

    @property
    def size(self) -> int:
        """Return what grows in the group."""
        return self.layers if self.group == LAYERS else self.gpus

    @property
    def mesh(self) -> str:
        """Return machines of eight GPUs, two of four for eight: all that grow have two axes."""
        if self.group == LAYERS:
            return str(self.gpus)
        return f"{self.gpus // 8}x8" if self.gpus > 8 else "2x4"


CASES = (
    *(GrowthCase(LAYERS, layers, 4) for layers in (4, 8, 16, 32)),
    *(GrowthCase(GPUS, 6, gpus) for gpus in (8, 32, 128, 512, 2048, 8192)),
)
SMALL = GrowthCase(LAYERS, 2, 4)


@click.command(help=__doc__)
@cli.listed("--groups", (LAYERS, GPUS))
@cli.listed("--objectives", (TIME, SUM))
@click.option("--budget", default=20.0, show_default=True, help="seconds for each search")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True)
@click.option("--again", is_flag=True, help="measure what the folder has already, too")
@cli.folder("out/hidup/growth")
def command(
    groups: Sequence[str], objectives: Sequence[str], budget: float, repeat: int, again: bool,
    folder: Path,
) -> int:  # fmt: skip
    """Measure what is missing, print the table and the bars, draw the figure."""
    store = folder / "rows.jsonl"
    if again:
        store.unlink(missing_ok=True)
    rows, cases = RowStore(store), [case for case in CASES if case.group in groups]
    keys = [
        {"group": c.group, "size": c.size, "objective": o, "budget_s": budget}
        for c in cases for o in objectives
    ]  # fmt: skip
    files, warm = folder.parent / "programs", False
    for turn in range(repeat):
        for number, key in enumerate(keys):
            case = cases[number // len(objectives)]
            if len(rows.having(**key)) <= turn:
                if not warm:
                    planned(SMALL, TIME, budget, files)
                    warm = True
                rows.add({**key, **planned(case, str(key["objective"]), budget, files)})
                told = "{group} {size}, {objective}: {seconds:.2f} s, gap {gap:.1%}"
                print(told.format(**rows.rows[-1]), flush=True)
    return report([median(rows.having(**key)[:repeat]) for key in keys], folder)


def planned(case: GrowthCase, objective: str, budget: float, files: Path) -> Row:
    """Plan a case once; return its seconds, from the program to the plan, and the gap."""
    program = MODELS[MAIN].program(files, case.gpus, per_gpu=1, layers=case.layers)
    begin = time.perf_counter()
    plan = autoddl.optimize(
        program, mesh=case.mesh, profile=PROFILE, memory=ROOMY, objective=objective, budget=budget
    )
    seconds = time.perf_counter() - begin
    return {"ops": len(program.ops), "seconds": seconds, "gap": plan.search.gap}


def median(rows: Sequence[Row]) -> Row:
    """Return the row of median seconds, and how many there were."""
    middle = statistics.median_low([row["seconds"] for row in rows])
    return {**next(row for row in rows if row["seconds"] == middle), "runs": len(rows)}


def bars(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float, float, bool]]:
    """Yield (what, growth, bar, met): from the first case of a group to the slowest of the others."""
    for objective in dict.fromkeys(row["objective"] for row in rows):
        for group in (LAYERS, GPUS):
            mine = [r for r in rows if (r["group"], r["objective"]) == (group, objective)]
            if len(mine) > 1:
                growth = max(row["seconds"] for row in mine) / mine[0]["seconds"]
                bar = mine[-1]["size"] / mine[0]["size"] if group == LAYERS else FLAT
                what = f"{objective}, {mine[0]['size']} to {mine[-1]['size']} {group}"
                yield what, growth, bar, growth <= bar


def report(rows: Sequence[Row], folder: Path) -> int:
    """Print the table and the bars, write and draw them; return the exit code."""
    frame, every = pd.DataFrame(rows), list(bars(rows))
    print(frames.text(frame, COLUMNS))
    for what, growth, bar, met in every:
        print(f"{what}: {growth:.2f}× (at most {bar:g}×: {'met' if met else 'MISSED'})")
    frames.save(frame, folder, "growth", bars=every)
    figure, axes = figures.panels(1, 2)
    for axis, group in zip(axes[0], (LAYERS, GPUS), strict=True):
        of_group = frame[frame.group == group]
        for colour, (objective, mine) in zip(
            figures.COLOURS, of_group.groupby("objective", sort=False), strict=False
        ):
            axis.plot(mine["size"], mine.seconds, marker="o", color=colour, label=objective)
        axis.set(xscale="log", xlabel=group, ylabel="s from program to plan")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
    figures.save(figure, folder / "fig14")
    return 0 if all(met for *_, met in every) else cli.MISSED


if __name__ == "__main__":
    sys.exit(cli.run(command, "hidup.growth"))
