"""The paper's runs at its own scale, by the model: `python -m experiments.figures.paper_scale`.

AutoDDL's figures 9 and 10, VGG13 and Transformers on 16 to 256 nodes of one P100 each, and on two nodes
of A100, and table III, a wide and a deep Transformer in 1, 2 or 4 stages: data parallelism, Megatron,
SUMMA, each on its best mesh, with its best number of stages and of micro-batches within the memory
(table III: any memory, as in the paper's model), beside ours. What ours saves over the best of them is
printed beside what the paper measured: of the step in which ops and boxings overlap as in OneFlow's
actors, and of compute plus communication, as the paper's bars are (with stages both are the simulated
step). Everything here is predicted; each finished candidate is a line of paper_scale.jsonl at once: a
run that is cut off goes on.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.planner.memory_limits import parse_bytes
from autoddl.planner.stages.cuts import equal_cut
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.baselines import assignments
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.pipeline_objective import repeated
from autoddl.search.result import Assignment, SearchOptions
from autoddl.search.solvers.named import SOLVERS
from autoddl.search.step.overlap import StepSearch
from experiments.lib import cli, figures, frames
from experiments.lib import oneflow_problems as builder
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

OURS = "ours"
DATA = "data parallel"
EXPERTS = (DATA, "Megatron", "SUMMA")  # the paper's
AXES = 2  # of a mesh, at most: Megatron's and SUMMA's are no more
KNOWN = 32  # assignments whose timelines are kept
SEARCH_S = 20.0  # for each mesh and number of micro-batches
PAPER: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text())


@dataclass(frozen=True)
class PaperRun:
    """A model on a cluster in the paper, and what AutoDDL saved there beside the second best.

    `saved` and `saved_communication` are shares of the step, and of its communication; `micro_batches`
    are the numbers tried: the paper takes the largest micro-batches that fit. Without a `precision` it
    trains in float32, without a `memory` there is no limit. `over` is the paper's second best where it
    says which that is.
    """

    figure: str
    name: str
    model: str
    nodes: int
    devices: int
    profile: str
    memory: str
    sizes: Mapping[str, Any]
    saved: float
    saved_communication: float
    micro_batches: Sequence[int] = (1,)
    precision: str = ""
    over: str = ""
    stages: Sequence[int] = (1,)

    @property
    def cluster(self) -> Cluster:
        """Return the devices by level."""
        levels = (Level("node", self.nodes), Level("gpu", self.devices))
        return Cluster(tuple(level for level in levels if level.size > 1))

    def meshes(self) -> Iterator[tuple[int, Mesh]]:
        """Yield numbers of stages, with every mesh that one of them may have."""
        for stages in self.stages:
            outer, *inner = self.cluster.levels
            part = Cluster((Level(outer.name, outer.size // stages), *inner))
            yield from ((stages, mesh) for mesh in part.meshes(AXES))


def _told(row: dict[str, Any]) -> PaperRun:
    """Return a run of paper.json; where it has seconds of the second best and of AutoDDL, these tell."""
    told = {**PAPER["figures"][row["figure"]], **row}
    if "seconds" in told:
        other_s, ours_s = told.pop("seconds")
        told |= {"saved": 1 - ours_s / other_s, "saved_communication": math.nan}
    return PaperRun(**{**told, "sizes": {**PAPER["models"][row["model"]], **row["sizes"]}})


RUNS = [_told(row) for row in PAPER["runs"]]
COLUMNS: frames.Formats = {
    "figure": "{}", "model": "{}", "cluster": "{}", "method": "{}", "mesh": "{}",
    "stages": "{:.0f}", "micro_batches": "{:.0f}",
    "step_s": "{:.3g}", "sum_s": "{:.3g}", "compute_s": "{:.3g}", "communication_s": "{:.3g}",
    "GiB": "{:.1f}",
}  # fmt: skip
SAVINGS: frames.Formats = {
    "figure": "{}", "model": "{}", "cluster": "{}", "judge": "{}", "second": "{}", "saved": "{:.1%}",
    "printed": "{:.1%}", "saved_communication": "{:.1%}", "printed_communication": "{:.1%}",
}  # fmt: skip
JUDGES = {"step_s": "overlapped", "sum_s": "sum"}


@click.command(help=__doc__)
@cli.listed("--figures", PAPER["figures"])
@click.option("--models", default="", help="those in whose name this is found", metavar="REGEX")
@cli.folder("out/paper_scale")
def command(figures: Sequence[str], models: str, folder: Path) -> None:
    """Do what is missing, print the tables, write and draw them."""
    kept = RowStore(folder / "paper_scale.jsonl")
    wanted = [run for run in RUNS if run.figure in figures and re.search(models, run.name)]
    if not wanted:
        raise AutoDDLError(f"--models {models!r}: no run is left of {len(RUNS)}")
    found = [row for run in wanted for row in rows(run, kept, folder)]
    every = with_sums(pd.DataFrame(found))
    frame = best(every, "sum_s")
    frame["GiB"] = frame.memory_bytes / 2**30
    print(frames.text(frame, COLUMNS))
    saved = pd.concat([savings(best(every, judge), judge) for judge in JUDGES])
    print(frames.text(saved, SAVINGS))
    said = "What ours saves of the step and of its communication, beside what the paper measured:"
    tables = [("", frame, COLUMNS), (said, saved, SAVINGS)]
    frames.save(frame, folder, "paper_scale", tables, savings=saved.to_dict("records"))
    draw(frame, folder / "paper_scale")


def rows(run: PaperRun, kept: RowStore, folder: Path) -> Iterator[Row]:
    """Yield the rows of all methods, meshes and numbers of micro-batches; missing ones are computed."""
    program = _program(run, folder / "programs")
    for count in run.micro_batches:
        micro = cache(partial(micro_batch, program, count)) if count > 1 else lambda: program
        for stages, mesh in run.meshes():
            key = {
                "figure": run.figure, "model": run.name, "cluster": str(run.cluster), "stages": stages,
                "mesh": mesh.describe(), "micro_batches": count, "precision": run.precision,
            }  # fmt: skip
            if not kept.having(**key):
                for row in list(_rows(run, micro(), stages, mesh, count)):
                    kept.add({**key, **row})
                print(*key.values(), file=sys.stderr)
            printed = {"over": run.over, "printed": run.saved,
                       "printed_communication": run.saved_communication}  # fmt: skip
            yield from ({**row, **printed} for row in kept.having(**key))


def _program(run: PaperRun, folder: Path) -> Program:
    file = folder / f"{run.name}-{run.cluster}-{run.precision}.json".replace(" ", "-")
    return captured(file, run.model, "toy", run.precision, **run.sizes)


def _rows(run: PaperRun, micro: Program, stages: int, mesh: Mesh, count: int) -> Iterator[Row]:
    """Yield a row for each method; without seconds where it does not fit or does not apply."""
    known = profiles.load(run.profile, device_type="cuda")
    limit = parse_bytes(run.memory) if run.memory else None
    try:
        problem = builder.build(micro, mesh, known)
    except AutoDDLError as error:  # the mesh divides no dim of an input
        yield {"method": OURS, "step_s": None, "why": str(error)}
        return
    links = Links(known, run.cluster)
    for method, assignment in _found(problem, stages, count, limit):
        whole = Assigned(problem, assignment)
        staged: Staged | Assigned = whole
        if count > 1:
            staged = equal_cut(whole, stages, count, links, limit)
        cost = staged.estimate(method)
        fits = limit is None or staged.memory_bytes <= limit
        yield {
            "method": method, "step_s": cost.step_s if fits else None, "compute_s": cost.compute_s,
            "communication_s": cost.communication_s, "memory_bytes": staged.memory_bytes,
        }  # fmt: skip


def _found(
    problem: CostNetwork, stages: int, count: int, limit: int | None
) -> Iterator[tuple[str, Assignment]]:
    """Yield the experts' assignments that apply, and ours: of the least sum, of the shortest step.

    Those of the least sum are searched within several parts of the memory.
    """
    weighted = repeated(problem, stages, count) if count > 1 else problem
    starts = assignments(weighted)
    yield from ((name, starts[name]) for name in EXPERTS if name in starts)
    options = SearchOptions(budget=SEARCH_S, stop_gap=0.01, starts=list(starts.values()))
    for share in (None, limit, limit // 2) if limit else (None,):
        memory = share and max(share, weighted.least_memory_bytes)
        yield OURS, SOLVERS["fast"](weighted, replace(options, memory_bytes=memory)).assignment
    if count == 1:
        judge = lru_cache(maxsize=KNOWN)(partial(Assigned, problem))
        yield OURS, StepSearch(problem, SOLVERS["fast"], judge, limit).search(options).assignment


def with_sums(frame: pd.DataFrame) -> pd.DataFrame:
    """Add compute plus communication of the rows that fit into memory; with stages the step."""
    step_s = frame.step_s.astype(float)
    sum_s = (frame.compute_s + frame.communication_s).where(step_s.notna())
    sum_s = sum_s.where(frame.stages == 1, step_s)
    return frame.assign(step_s=step_s, sum_s=sum_s)


def best(frame: pd.DataFrame, judge: str) -> pd.DataFrame:
    """Return the best row of each method of each run by a column; without seconds where none fits."""
    keys = ["figure", "model", "cluster", "method"]
    order = frame.sort_values(judge, kind="stable", na_position="last")
    return order.groupby(keys, sort=False).head(1).sort_index().reset_index(drop=True)


def savings(frame: pd.DataFrame, judge: str) -> pd.DataFrame:
    """Return what ours saves over the second best of each run, beside what the paper says.

    Where the paper says which plan that is it is the same one here. NaN where no other plan fits.
    """
    found = []
    for (figure, model, cluster), mine in frame.groupby(["figure", "model", "cluster"], sort=False):
        ours = mine[mine.method == OURS].iloc[0]
        others = mine[mine.method == (ours.over or mine.method)]
        others = others[others.method != OURS].dropna(subset=[judge])
        row = {
            "figure": figure, "model": model, "cluster": cluster, "judge": JUDGES[judge],
            "second": "", "saved": math.nan, "printed": ours.printed, "saved_communication": math.nan,
            "printed_communication": ours.printed_communication,
        }  # fmt: skip
        if len(others):
            second = others.loc[others[judge].idxmin()]
            row |= {
                "second": second.method, "saved": 1 - ours[judge] / second[judge],
                "saved_communication": 1 - ours.communication_s / second.communication_s
                if second.communication_s else 0.0,
            }  # fmt: skip
        found.append(row)
    return pd.DataFrame(found)


def draw(frame: pd.DataFrame, file: Path) -> None:
    """Draw the steps as bars, compute below communication; diamonds are steps in which they overlap."""
    runs = list(frame.groupby(["figure", "model", "cluster"], sort=False))
    columns = (len(runs) + 1) // 2
    figure, axes = figures.panels(2, columns, (2.3, 3.4))
    for axis, (name, mine) in zip(axes.flat, runs, strict=False):
        fits = mine.dropna(subset=["step_s"])
        places = range(len(fits))
        axis.bar(places, fits.compute_s, color=figures.COLOURS[0], label="compute")
        axis.bar(places, fits.communication_s, bottom=fits.compute_s, color=figures.COLOURS[4],
                 label="communication")  # fmt: skip
        axis.plot(places, fits.step_s, "kD", markersize=4, label="overlapped")
        axis.set_xticks(places, fits.method, rotation=90, fontsize=8)
        axis.set_title(f"{name[1]}\n{name[2]}", fontsize=9)
        axis.set_ylabel("predicted step (s)")
    axes[0][0].legend(frameon=False, fontsize=8)
    figures.save(figure, file)


if __name__ == "__main__":
    sys.exit(cli.run(command, "figures.paper_scale"))
