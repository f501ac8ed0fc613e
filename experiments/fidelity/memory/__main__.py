"""Predicted memory against OneFlow's own plan, compiled for CUDA without a GPU.

`python -m experiments.fidelity.memory` compares, for every rank, the bytes of baseline and random plans;
half of the random ones are refined by coordinate descent, so that they are of the kind that a search
returns. With a precision the graph is traced as for CUDA devices, with mixed precision where it is not
float32; without as for the CPU. With `--compute-stream` boxings are ops of the compute stream, and
tensors may be redistributed for the forward and again for the backward pass (16 plans have all kinds).
Every plan is a line of runs.jsonl at once: a run that is cut off goes on from there. The exit code is 1
where one is off by more than 10 %.

Workspaces of convolutions are not part of either side: cuDNN chooses them on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.api import Plan
from autoddl.engine.oneflow.model.memory.device_memory import rank_estimate
from autoddl.planner.assemble import make_plan
from autoddl.search.baselines import BASELINES
from experiments.fidelity.memory.cases import AGAIN, SIZES, assignment_of, problem_of
from experiments.fidelity.memory.cuda_memory import cuda_memory
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.without_gpu import PRECISIONS

BAR = 0.10
COLUMNS: frames.Formats = {
    "model": "{}", "mesh": "{}", "plans": "{}", "mean": "{:.2%}", "worst": "{:.2%}"
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", SIZES)
@click.option("--meshes", default="4,2x2", show_default=True)
@click.option("--plans", default=10, show_default=True)
@click.option("--precision", type=click.Choice(PRECISIONS))
@click.option("--compute-stream", is_flag=True)
@cli.folder("out/memory")
def command(
    models: Sequence[str], meshes: str, plans: int, precision: str | None, compute_stream: bool,
    folder: Path,
) -> int:  # fmt: skip
    """Run what is missing, print the table and write it."""
    kept, found = RowStore(folder / "runs.jsonl"), list[Row]()
    for model in models:
        for mesh in meshes.split(","):
            problem = cache(
                partial(problem_of, folder, model, mesh, SIZES[model], precision, compute_stream)
            )
            for name in plan_names(plans, compute_stream=compute_stream):
                key = {"model": model, "mesh": mesh, "plan": name, "compute_stream": compute_stream,
                       "precision": precision}  # fmt: skip
                row = kept.once(key, partial(compared, problem, model, name, precision))
                found += [{**key, **rank} for rank in row["ranks"]]
                print(f"{model} [{mesh}] {name}: {len(row['ranks'])} ranks", flush=True)
    frame = pd.DataFrame(found)
    frame["error"] = frame.predicted / frame.oneflow - 1
    off = frame.assign(off=frame.error.abs()).groupby(["model", "mesh"], sort=False)
    table = off.agg(plans=("plan", "nunique"), mean=("off", "mean"), worst=("off", "max"))
    print(frames.text(table.reset_index(), COLUMNS))
    frames.save(frame, folder, "memory")
    return cli.MISSED if frame.error.abs().max() > BAR else 0


def plan_names(plans: int, *, compute_stream: bool = False) -> list[str]:
    """Return the names of so many plans: the baselines, then refined and random ones in turn."""
    drawn = [f"{('refined', 'random')[i % 2]} {i // 2}" for i in range(plans)]
    again = [f"{name}{AGAIN}" for name in BASELINES] if compute_stream else []
    return [*BASELINES, *again, *drawn][:plans]


def compared(problem: Any, model: str, name: str, precision: str | None) -> Row:
    """Compile a plan for CUDA; return each rank's bytes beside predicted ones, of none that applies."""
    network = problem()
    assignment = assignment_of(network, name)
    if assignment is None:
        return {"ranks": []}
    plan = Plan.of(make_plan(network, network.result(name, assignment)))
    arguments = {"name": model, **SIZES[model]}
    made = cuda_memory(
        plan, "experiments.models:build", arguments, precision=precision or "float32"
    )
    predict = partial(
        rank_estimate, plan.mesh.shape, plan.layout, compute_stream=plan.compute_stream
    )
    return {"ranks": [
        {"rank": real.rank, "oneflow": real.total,
         "predicted": predict(coords=plan.mesh.coords(real.rank)).total}
        for real in made
    ]}  # fmt: skip


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity.memory"))
