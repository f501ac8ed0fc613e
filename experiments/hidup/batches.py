"""Batch sizes of BERT-SGMoE, figure 9: `python -m experiments.hidup.batches`.

Two machines of four GPUs at 100 Gbit/s, with 8 to 128 sequences for each GPU. The paper measured that
its halves pay beyond 16, and that one product of the model is as fast for each sequence from 64 on; here
a plan without halves is predicted, beside expert and data parallelism. Small batches leave ops with
their launch overhead, and all with the same gradients to sum up. Kept rows are used again.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click
import pandas as pd

from autoddl.perfmodel import profile as profiles
from experiments.hidup.bandwidths import GPUS, MAIN, MESH
from experiments.hidup.clusters import at_rate
from experiments.hidup.moe_models import MODELS
from experiments.hidup.moe_plans import PROFILE, row
from experiments.lib import cli, figures, frames
from experiments.lib.frames import Row, RowStore

RATE = 100.0  # Gbit/s
SIZES = (8, 16, 32, 64, 128)
COLUMNS: frames.Formats = {
    "per_gpu": "{}", "step_s": "{:.4f}", "gap": "{:.1%}", "search_s": "{:.1f}", "best": "{}",
    "best_s": "{:.4f}", "expert_s": "{:.4f}", "data_s": "{:.4f}", "each_ms": "{:.3f}",
    "compute_ms": "{:.3f}",
}  # fmt: skip


@click.command(help=__doc__)
@click.option("--budget", default=20.0, show_default=True, help="seconds for each search")
@cli.folder("out/hidup/batches")
def command(budget: float, folder: Path) -> None:
    """Plan what is missing, print the table and draw the figure."""
    rows = RowStore(folder / "rows.jsonl")
    frame = pd.DataFrame(
        [
            rows.once({"per_gpu": n, "budget_s": budget}, partial(_planned, n, budget, folder))
            for n in SIZES
        ]
    )
    frame["each_ms"] = 1e3 * frame.step_s / frame.per_gpu
    frame["compute_ms"] = 1e3 * frame.compute_s / frame.per_gpu
    print("each_ms and compute_ms: of the step and of its ops, for one sequence")
    print(frames.text(frame, COLUMNS))
    frames.save(frame, folder, "fig09", rate=RATE)
    figure, axes = figures.panels(1, 2)
    series = {"step_s": "plan", "data_s": "data parallel", "expert_s": "expert parallel"}
    for colour, (column, label) in zip(figures.COLOURS, series.items(), strict=False):
        axes[0][0].plot(frame.per_gpu, frame[column], marker="o", color=colour, label=label)
    axes[0][0].set(ylabel="s per step", title=f"{MAIN}, {RATE:g} Gbit/s")
    axes[0][1].plot(
        frame.per_gpu, 1e3 / frame.compute_ms, marker="o", color=figures.COLOURS[0], label="ops"
    )
    axes[0][1].plot(
        frame.per_gpu, 1e3 / frame.each_ms, marker="o", color=figures.COLOURS[1], label="step"
    )
    axes[0][1].set(ylabel="sequences per GPU and second")
    for axis in axes[0]:
        axis.set(xscale="log", xlabel="sequences per GPU")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
    figures.save(figure, folder / "fig09")


def _planned(per_gpu: int, budget: float, folder: Path) -> Row:
    program = MODELS[MAIN].program(folder.parent / "programs", GPUS, per_gpu=per_gpu)
    found, _ = row(program, MESH, at_rate(profiles.load(PROFILE), RATE), budget)
    print(f"{per_gpu} sequences: {found['step_s']:.4f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(cli.run(command, "hidup.batches"))
