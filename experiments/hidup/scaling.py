"""The paper's models on one to eight machines of V100s: `python -m experiments.hidup.scaling`.

One machine with 2 to 8 GPUs (figure 7, and with 4 of them the memory of table 3), and 2 to 8 machines of
eight with 9.71 Gbit/s between (figure 6); the batch and the experts grow with the GPUs. The paper
measured, in halves; here one batch is predicted. Kept rows are used again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import pandas as pd

from autoddl.perfmodel import profile as profiles
from experiments.hidup.clusters import rate, scaled
from experiments.hidup.moe_models import MODELS
from experiments.hidup.moe_plans import PROFILE, row
from experiments.lib import cli, figures, frames
from experiments.lib.frames import Row, RowStore

RATE = 9.71  # Gbit/s between machines
ALL, MACHINE = (2, 4, 8, 16, 32, 64), 8
TABLE3 = {
    "BERT-SGMoE": (6.77, 9.87, 7.63), "BERT-Switch": (6.34, 9.44, 7.30),
    "ViT-SGMoE": (2.79, 4.92, 2.78), "ViT-Switch": (2.60, 4.68, 2.63),
}  # fmt: skip
"""Peak GB on 4 GPUs of HiDup, DDP and FastMoE, by model."""
FIG6 = {"BERT": 1.18, "ViT": 1.61}
"""How much faster HiDup is at most than the best of the others beyond 16 GPUs, by the model's kind."""
COLUMNS: frames.Formats = {
    "model": "{}", "gpus": "{}", "step_s": "{:.4f}", "gap": "{:.1%}", "search_s": "{:.1f}",
    "best": "{}", "best_s": "{:.4f}", "faster": "{:+.1%}", "expert_s": "{:.4f}",
    "data_s": "{:.4f}", "memory_gb": "{:.2f}", "data_gb": "{:.2f}", "expert_gb": "{:.2f}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", MODELS)
@cli.listed("--gpus", map(str, ALL))
@click.option("--budget", default=10.0, show_default=True, help="seconds for each search")
@cli.folder("out/hidup/scaling")
def command(models: Sequence[str], gpus: Sequence[str], budget: float, folder: Path) -> None:
    """Plan what is missing, print the tables and draw the figures."""
    rows, found = RowStore(folder / "rows.jsonl"), []
    for model in models:
        for count in map(int, gpus):
            key = {"model": model, "gpus": count, "budget_s": budget}
            found.append(rows.once(key, partial(_planned, model, count, budget, folder)))
    frame = pd.DataFrame(found)
    frame["faster"] = frame.best_s / frame.step_s - 1
    print(frames.text(frame, COLUMNS))
    for one in found:
        if one["gpus"] == 4:
            ours = ", ".join(f"{one[f'{n}_gb'] or 0:.2f}" for n in ("memory", "data", "expert"))
            printed = ", ".join(map(str, TABLE3[one["model"]]))
            print(
                f"table 3, {one['model']}: plan, data and expert parallel {ours} GB; in the paper"
            )
            print(f"  HiDup, DDP and FastMoE {printed} GB")
    for kind, most_printed in FIG6.items():
        mine = frame[frame.model.str.startswith(kind) & (frame.gpus > 16)]
        if not mine.empty:
            others = mine[["expert_s", "data_s"]].min(axis=1)
            most = (others / mine.step_s).max()
            print(
                f"figure 6, {kind} beyond 16 GPUs: at most {most:.2f}× as fast as expert and data"
            )
            print(
                f"  parallel, {1 + mine.faster.max():.2f}× as the best baseline; paper {most_printed}×"
            )
    frames.save(frame, folder, "fig06_07", rate=RATE, table3=TABLE3, fig6=FIG6)
    draw(frame, folder)


def _planned(model: str, gpus: int, budget: float, folder: Path) -> Row:
    program = MODELS[model].program(folder.parent / "programs", gpus)
    mesh = str(gpus) if gpus <= MACHINE else f"{gpus // MACHINE}x{MACHINE}"
    profile = profiles.load(PROFILE)
    found, _ = row(program, mesh, scaled(profile, RATE / rate(profile)), budget)
    print(f"{model} on {gpus} GPUs: {found['step_s']:.4f} s", flush=True)
    return found


def draw(frame: pd.DataFrame, folder: Path) -> None:
    """Draw figure 7 above figure 6, a panel for each model."""
    models = list(dict.fromkeys(frame.model))
    figure, axes = figures.panels(2, len(models))
    series = {"step_s": "plan", "data_s": "data parallel", "expert_s": "expert parallel"}
    for column, model in enumerate(models):
        for at, inside in enumerate((True, False)):
            mine = frame[(frame.model == model) & ((frame.gpus <= MACHINE) == inside)]
            axis = axes[at][column]
            for colour, (name, label) in zip(figures.COLOURS, series.items(), strict=False):
                axis.plot(mine.gpus, mine[name], marker="o", color=colour, label=label)
            where = "one machine" if inside else f"{RATE} Gbit/s between machines"
            axis.set(xlabel=f"GPUs, {where}", ylabel="s per step", title=model, xticks=mine.gpus)
            axis.set_ylim(bottom=0)
    axes[0][0].legend(frameon=False)
    figures.save(figure, folder / "fig06_07")


if __name__ == "__main__":
    sys.exit(cli.run(command, "hidup.scaling"))
