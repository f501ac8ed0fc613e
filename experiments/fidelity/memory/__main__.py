"""Predicted memory against OneFlow's own plan, compiled for CUDA without a GPU.

`python -m experiments.fidelity.memory [--models gpt,vgg13,bert_moe] [--meshes 4,2x2] [--plans 10]
[--seed 0] [--precision float16] [--folder out/memory] [--compute-stream]` compares, for every rank, the
bytes of baseline and random plans; half of the random ones are refined by coordinate descent, so that
they are of the kind that a search returns. With a precision the graph is traced as for CUDA devices,
with mixed precision where it is not float32; without as for the CPU. With `--compute-stream` boxings are
ops of the compute stream, and tensors may be redistributed for the forward and again for the backward
pass (16 plans have all kinds). `--meshes 1/2,2x2/2` has plans of two stages with four micro-batches of
the same size, and compares the device of each stage that needs most. Every plan is a line of runs.jsonl
at once: a run that is cut off goes on from there. The exit code is 1 where one is off by more than 10 %.

Workspaces of convolutions are not part of either side: cuDNN chooses them on the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import pandas as pd
from msgspec.structs import replace

from autoddl.api import Plan
from autoddl.engine.oneflow.model.memory.device_memory import rank_estimate
from autoddl.perfmodel import profile as profiles
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.baselines import BASELINES
from autoddl.search.heuristics.descent import Descent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import Assignment
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.fidelity.memory.cuda_memory import PlanMemory, cuda_memory
from experiments.fidelity.memory.staged_plans import MICRO_BATCHES, Choice, StagedPlans
from experiments.lib import cli, figures, frames
from experiments.lib import oneflow_problems as builder
from experiments.lib.cuda_stand_in import PRECISIONS
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured, captured_for_cuda

BAR = 0.10
AGAIN = ", made again"  # a baseline whose tensors wait for the backward pass as they were made
MIB = 2**20
# Some 100 MB on each rank, so that no fixed part dominates.
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 4, "width": 512, "heads": 8, "sequence": 128, "vocabulary": 2048, "batch": 8,
        "optimizer": "adam",
    },
    "vgg13": {"image": 64, "classes": 1000, "channel_scale": 1, "dense": 1024, "batch": 16},
    "bert_moe": {
        "layers": 2, "width": 256, "heads": 4, "sequence": 64, "vocabulary": 1024, "batch": 16,
        "optimizer": "adam",
    },
}  # fmt: skip
GROUP = ["model", "mesh"]
COLUMNS: frames.Formats = {
    "model": "{}", "mesh": "{}", "plans": "{}", "least MiB": "{:.0f}", "most MiB": "{:.0f}",
    "mean": "{:.2%}", "worst": "{:.2%}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", SIZES)
@click.option("--meshes", default="4,2x2", show_default=True)
@click.option("--plans", default=10, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--precision", type=click.Choice(PRECISIONS))
@click.option("--compute-stream", is_flag=True)
@cli.folder("out/memory")
def command(
    models: Sequence[str], meshes: str, plans: int, seed: int, precision: str | None,
    compute_stream: bool, folder: Path,
) -> int:  # fmt: skip
    """Run what is missing, print the table, write and draw it."""
    kept = RowStore(folder / "runs.jsonl")
    names = plan_names(plans, seed, compute_stream=compute_stream)
    found: list[Row] = []
    for model in models:
        programs = [_program(folder, model, precision, staged=staged) for staged in (False, True)]
        for mesh in meshes.split(","):
            found += run(
                kept, programs["/" in mesh], model, mesh, names,
                precision=precision or "", compute_stream=compute_stream,
            )  # fmt: skip
    frame = pd.DataFrame(found)
    frame["error"] = frame.predicted / frame.oneflow - 1
    print(frames.text(summary(frame), COLUMNS))
    frames.save(frame, folder, "memory")
    draw(folder / "memory", frame)
    return cli.MISSED if frame.error.abs().max() > BAR else 0


def sizes(model: str, *, staged: bool) -> dict[str, Any]:
    """Return the sizes of a model; with stages a micro-batch is what a batch is without."""
    batch = SIZES[model]["batch"] * (MICRO_BATCHES if staged else 1)
    return {**SIZES[model], "batch": batch}


def _program(folder: Path, model: str, precision: str | None, *, staged: bool) -> Program:
    names = filter(None, (model, precision, "staged" * staged))
    file, wanted = folder / "programs" / f"{'-'.join(names)}.json", sizes(model, staged=staged)
    if precision:
        return captured_for_cuda(file, model, "toy", precision, **wanted)
    return captured(file, model, "toy", **wanted)


def run(
    kept: RowStore, program: Program, model: str, mesh: str, names: Sequence[str],
    *, precision: str = "", compute_stream: bool = False,
) -> list[Row]:  # fmt: skip
    """Return the rows of a model on a mesh, one for each rank of each plan; missing ones are added."""
    profile = profiles.load(None)
    profile = replace(
        profile, overlap=dict.fromkeys(profile.levels, 1.0)
    )  # so that ops get an order
    staged = "/" in mesh

    @cache
    def stages() -> StagedPlans:
        return StagedPlans(program, mesh.split("/"), profile)

    @cache
    def problem() -> CostNetwork:
        built = builder.build(program, Mesh.parse(mesh), profile, compute_stream=compute_stream)
        return SavedTensors.apply(built).network if compute_stream else built

    def compiled(name: str) -> Row:
        begin = time.perf_counter()
        choice = partial(_assignment, name=name)
        plan = stages().plan(name, choice) if staged else _plan(problem(), name, choice)
        rows = [] if plan is None else compare(plan, model, precision)
        for worst in sorted((r["predicted"] / r["oneflow"] - 1 for r in rows), key=abs)[-1:]:
            took, size = time.perf_counter() - begin, rows[-1]["oneflow"] / MIB
            text = f"{size:.0f} MiB, error {worst:+.2%} ({took:.1f} s)"
            print(f"{model} [{mesh}] {name}: {text}", flush=True)
        return {"ranks": rows}

    found: list[Row] = []
    for name in names:
        key = {"model": model, "mesh": mesh, "plan": name, "compute_stream": compute_stream}
        key |= {"precision": precision} if precision else {}
        row = kept.once(key, partial(compiled, name))
        found += [{**key, **rank} for rank in row["ranks"]]
    return found


def plan_names(plans: int, seed: int, *, compute_stream: bool = False) -> list[str]:
    """Return the names of so many plans: the baselines, then refined and random ones in turn."""
    drawn = [f"{('refined', 'random')[i % 2]} {seed + i // 2}" for i in range(plans)]
    again = [f"{name}{AGAIN}" for name in BASELINES] if compute_stream else []
    return [*BASELINES, *again, *drawn][:plans]


def compare(plan: Plan, model: str, precision: str = "") -> list[Row]:
    """Compile a plan for CUDA; return each rank's bytes, or each stage's most, beside predicted ones."""
    staged = len(plan.parts) > 1
    arguments: dict[str, Any] = {"name": model, **sizes(model, staged=staged)}
    build, precision = "experiments.models:build", precision or "float32"
    found = cuda_memory(plan, build, arguments, precision=precision)
    if not staged:
        return [{**_real(real), **_predicted(plan, real.rank)} for real in found]
    rows = []
    for part in plan.parts:
        most = max((real for real in found if real.rank in part.ranks), key=lambda r: r.total)
        rows.append({**_real(most), "predicted": part.memory_bytes})
    return rows


def _real(real: PlanMemory) -> Row:
    return {
        "rank": real.rank,
        "oneflow_variables": real.variables, "oneflow_reused": real.reused,
        "oneflow_others": real.others, "oneflow": real.total,
    }  # fmt: skip


def _predicted(plan: Plan, rank: int) -> Row:
    memory = rank_estimate(
        plan.mesh.shape, plan.layout, coords=plan.mesh.coords(rank),
        compute_stream=plan.compute_stream,
    )  # fmt: skip
    return {
        "parameters": memory.parameters, "gradients": memory.gradients,
        "optimizer_states": memory.optimizer_states,
        "activations_peak": memory.activations_peak, "buffers": memory.buffers,
        "predicted": memory.total,
    }  # fmt: skip


def _plan(problem: CostNetwork, name: str, choice: Choice) -> Plan | None:
    """Return the plan of a name; None for a baseline that does not apply."""
    assignment = choice(problem)
    if assignment is None:
        return None
    return Plan.of(make_plan(problem, problem.result(name, assignment)))


def _assignment(problem: CostNetwork, *, name: str) -> Assignment | None:
    baseline = name.removesuffix(AGAIN)
    if baseline in BASELINES:
        found = BASELINES[baseline](problem)
        if found is None or name == baseline:
            return found
        saved = SavedTensors(problem)
        return saved.as_made(saved.invert(found))
    kind, _, seed = name.partition(" ")
    drawn = random_assignment(problem, int(seed))
    return Assignment(Descent(problem).refine(drawn)) if kind == "refined" else drawn


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model and mesh: plans, bytes, mean and worst error over plans and ranks."""
    groups = frame.assign(mib=frame.oneflow / MIB, off=frame.error.abs()).groupby(GROUP, sort=False)
    named = {
        "plans": ("plan", "nunique"), "least MiB": ("mib", "min"), "most MiB": ("mib", "max"),
        "mean": ("off", "mean"), "worst": ("off", "max"),
    }  # fmt: skip
    return groups.agg(**named).reset_index()


def draw(file: Path, frame: pd.DataFrame) -> None:
    """Draw predicted against OneFlow's bytes, with the band of the bar."""
    figure, ((axis,),) = figures.panels(size=(5, 5))
    sizes = frame.assign(oneflow=frame.oneflow / MIB, predicted=frame.predicted / MIB)
    figures.against(axis, sizes, "oneflow", "predicted", GROUP, BAR)
    axis.set(xlabel="OneFlow's CUDA plan, MiB per rank", ylabel="predicted, MiB per rank")
    axis.set(title="memory of baseline and random plans (band: 10 %)")
    figures.save(figure, file)


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity.memory"))
