"""Predicted memory against OneFlow's own plan, compiled for CUDA without a GPU.

`python -m experiments.fidelity_memory [--models gpt,vgg13,bert_moe] [--meshes 4,2x2] [--plans 10]
[--seed 0] [--folder out/memory] [--compute-stream]` compares, for every rank, the bytes of baseline
and random plans; half of the random ones are refined by coordinate descent, so that they are of the
kind that a search returns. With `--compute-stream` boxings are ops of the compute stream, and tensors
may be redistributed for the forward and again for the backward pass (16 plans have all kinds). Every
plan is a line of runs.jsonl at once: a run that is cut off goes on from there. The exit code is 1
where a rank is off by more than 10 %.

Workspaces of convolutions are not part of either side: cuDNN chooses them on the device.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import autoddl
from autoddl.engine.cuda_memory import cuda_memory
from autoddl.make_plan import layout_of, make_plan
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.memory import rank_estimate
from autoddl.plan import Plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search import builder
from autoddl.search.baselines import BASELINES
from autoddl.search.descent import Descent
from autoddl.search.kept import with_kept
from autoddl.search.passes import made_again
from autoddl.search.problem import Problem
from autoddl.search.random import random_assignment
from experiments import models

BAR = 0.10
AGAIN = ", made again"  # a baseline whose tensors wait for the backward pass as they were made
MIB = 2**20
# Some 100 MB on each rank, so that no fixed part dominates.
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 4, "width": 512, "heads": 8, "sequence": 128, "vocabulary": 2048, "batch": 8,
        "optimizer": "adam",
    },
    "vgg13": {
        "image": 64, "classes": 1000, "channel_scale": 1, "dense": 1024, "batch": 16,
    },
    "bert_moe": {
        "layers": 2, "width": 256, "heads": 4, "sequence": 64, "vocabulary": 1024, "batch": 16,
        "optimizer": "adam",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One rank of one plan: bytes as OneFlow's plan has them, and as predicted."""

    model: str
    mesh: str
    plan: str
    rank: int
    oneflow_variables: int
    oneflow_reused: int
    oneflow_others: int
    oneflow: int
    parameters: int
    gradients: int
    optimizer_states: int
    activations_peak: int
    buffers: int
    predicted: int
    compute_stream: bool = False

    @property
    def error(self) -> float:
        """Return the relative error."""
        return self.predicted / self.oneflow - 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, print the table, write CSV and PNG."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--meshes", default="4,2x2")
    parser.add_argument("--plans", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("out/memory"))
    parser.add_argument("--compute-stream", action="store_true")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for model in args.models.split(","):
        for mesh in args.meshes.split(","):
            names = plan_names(args.plans, args.seed, compute_stream=args.compute_stream)
            rows += run(
                args.folder / "runs.jsonl", model, mesh, names, compute_stream=args.compute_stream
            )
    write_csv(args.folder / "memory.csv", rows)
    draw(args.folder / "memory.png", rows)
    for line in table(rows):
        print(line)
    return int(any(abs(row.error) > BAR for row in rows))


def run(
    file: Path, model: str, mesh: str, names: Sequence[str], *, compute_stream: bool = False
) -> list[Row]:
    """Return the rows of a model on a mesh; those that `file` lacks are computed and added."""
    asked = (model, mesh, compute_stream)
    known = [row for row in _read(file) if (row.model, row.mesh, row.compute_stream) == asked]
    found = [row for row in known if row.plan in names]
    missing = [name for name in names if name not in {row.plan for row in found}]
    if not missing:
        return found
    with autoddl.abstract_parameters():
        graph, inputs = models.build(model, **SIZES[model])
    program = autoddl.capture(graph, *inputs)
    problem = builder.build(
        program, Mesh.parse(mesh), profiles.load(None), compute_stream=compute_stream
    )
    if compute_stream:
        problem = with_kept(problem)
    for name in missing:
        begin = time.perf_counter()
        plan = _plan(problem, name)
        if plan is None:
            continue
        rows = compare(program, plan, model, name)
        with file.open("a") as out:
            out.write(json.dumps([asdict(row) for row in rows]) + "\n")
        found += rows
        worst = max((row.error for row in rows), key=abs)
        print(
            f"{model} [{mesh}] {name}: {rows[-1].oneflow / MIB:.0f} MiB, error {worst:+.2%} "
            f"({time.perf_counter() - begin:.1f} s)",
            flush=True,
        )
    return found


def plan_names(plans: int, seed: int, *, compute_stream: bool = False) -> list[str]:
    """Return the names of so many plans: the baselines, then refined and random ones in turn."""
    drawn = [f"{('refined', 'random')[i % 2]} {seed + i // 2}" for i in range(plans)]
    again = [f"{name}{AGAIN}" for name in BASELINES] if compute_stream else []
    return [*BASELINES, *again, *drawn][:plans]


def compare(program: Program, plan: Plan, model: str, name: str) -> list[Row]:
    """Compile a plan for CUDA and return each rank's bytes beside the predicted ones."""
    measured = cuda_memory(plan, "experiments.models:build", {"name": model, **SIZES[model]})
    rows = []
    for real in measured:
        memory = rank_estimate(
            program, plan.mesh.shape, layout_of(plan), coords=plan.mesh.coords(real.rank),
            compute_stream=plan.compute_stream,
        )  # fmt: skip
        rows.append(
            Row(
                model, str(plan.mesh), name, real.rank,
                real.variables, real.reused, real.others, real.total,
                memory.parameters, memory.gradients, memory.optimizer_states,
                memory.activations_peak, memory.buffers, memory.total, plan.compute_stream,
            )
        )  # fmt: skip
    return rows


def _plan(problem: Problem, name: str) -> Plan | None:
    """Return the plan of a name; None for a baseline that does not apply."""
    baseline = name.removesuffix(AGAIN)
    if baseline in BASELINES:
        assignment = BASELINES[baseline](problem)
        if assignment is None:
            return None
        if name != baseline:
            assignment = made_again(problem, assignment)
    else:
        kind, _, seed = name.partition(" ")
        assignment = random_assignment(problem, int(seed))
        if kind == "refined":
            assignment = tuple(Descent(problem).refine(list(assignment)))
    return make_plan(problem, problem.result(name, assignment))


def _read(file: Path) -> list[Row]:
    """Return the rows of a file; a last line that was cut off is dropped."""
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    return [Row(**row) for line in whole.splitlines() for row in json.loads(line)]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one line per model and mesh: plans, bytes, mean and worst error over plans and ranks."""
    yield f"{'model':10} {'mesh':5} {'plans':>5} {'OneFlow, MiB per rank':>22} {'mean':>7} {'worst':>7}"
    for model, mesh in dict.fromkeys((row.model, row.mesh) for row in rows):
        mine = [row for row in rows if (row.model, row.mesh) == (model, mesh)]
        errors = np.abs([row.error for row in mine])
        sizes = [row.oneflow / MIB for row in mine]
        plans = len({row.plan for row in mine})
        yield (
            f"{model:10} {mesh:5} {plans:5} {min(sizes):11.0f} to {max(sizes):6.0f} "
            f"{errors.mean():7.2%} {errors.max():7.2%}"
        )


def write_csv(file: Path, rows: Iterable[Row]) -> None:
    """Write every rank of every plan."""
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow([*(f.name for f in fields(Row)), "error"])
        writer.writerows([*asdict(row).values(), f"{row.error:.6f}"] for row in rows)


def draw(file: Path, rows: Sequence[Row]) -> None:
    """Draw predicted against OneFlow's bytes, with the band of the bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 5), layout="constrained")
    colors = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
    groups = list(dict.fromkeys((row.model, row.mesh) for row in rows))
    for number, (model, mesh) in enumerate(groups):
        mine = [row for row in rows if (row.model, row.mesh) == (model, mesh)]
        axes.scatter(
            [row.oneflow / MIB for row in mine], [row.predicted / MIB for row in mine],
            s=18, color=colors[number % len(colors)], label=f"{model} [{mesh}]",
        )  # fmt: skip
    ends = np.array([f([row.oneflow / MIB for row in rows]) for f in (min, max)])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(ends, ends * (1 - BAR), ends * (1 + BAR), color="black", alpha=0.1)
    axes.set(xscale="log", yscale="log", xlabel="OneFlow's CUDA plan, MiB per rank")
    axes.set(
        ylabel="predicted, MiB per rank", title="memory of baseline and random plans (band: 10 %)"
    )
    axes.legend()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
