"""Transformers with 1, 2, 4 stages (AutoDDL, table III): `python -m experiments.figures.table3`.

For a wide and a deep Transformer on nodes of one P100 each: Megatron with its best grid inside the
stages against ours, with the same numbers of stages and micro-batches, both cut and simulated alike.
With `--measure`, both scaled down, on ranks of this machine. Each finished candidate is a line of
table3.jsonl at once: a run that is cut off goes on from there. As in the paper's model memory is no
limit unless one is given; the table tells what OneFlow would take.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pandas as pd

from autoddl.api import Plan
from autoddl.budget import TWENTY_SECONDS
from autoddl.engine.oneflow.model.engine_model import ONEFLOW, SEPARATE_STREAMS
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.planner.assemble import staged_plan
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.memory_limits import parse_bytes
from autoddl.planner.request import Request
from autoddl.planner.stages.cuts import equal_cut
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Level
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.baselines import assignments
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.pipeline_objective import repeated
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.solvers.named import SOLVERS
from experiments.lib import cli, figures, frames
from experiments.lib import oneflow_problems as builder
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

SHAPES: dict[str, dict[str, int]] = {  # of the paper's models
    "wide": {"layers": 20, "width": 8192, "heads": 64, "sequence": 1024, "vocabulary": 51200},
    "deep": {"layers": 36, "width": 4096, "heads": 32, "sequence": 1024, "vocabulary": 51200},
}
SCALED: dict[str, dict[str, int]] = {  # for ranks of one machine
    "wide": {
        "layers": 2, "width": 512, "heads": 8, "sequence": 32, "vocabulary": 512, "batch": 16,
    },
    "deep": {
        "layers": 4, "width": 256, "heads": 4, "sequence": 32, "vocabulary": 512, "batch": 16,
    },
}  # fmt: skip
BATCH = {64: 512, 128: 1024}  # sequences by nodes
STAGES = (1, 2, 4)
MEGATRON, OURS = "Megatron", "ours"
METHODS = (MEGATRON, OURS)
SEQUENCES = (8, 64)  # of a micro-batch
AXES = 2  # of a stage's mesh, at most
# Seconds of Megatron and of AutoDDL in the paper, each with its best number of stages.
PAPER = ((533, 335), (503, 315), (710, 443), (807, 508))
SETTING = ["model", "devices", "stages"]
COLUMNS: frames.Formats = {name: "{}" for name in SETTING} | {
    f"{method} {what}": form
    for method in METHODS
    for what, form in (("s", "{:.4g}"), ("mesh", "{}"), ("m", "{:.0f}"), ("GiB", "{:.0f}"))
} | {"change": "{:+.1%}"}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", SHAPES)
@click.option("--devices", type=click.Choice(list(map(str, BATCH))), multiple=True,
              default=list(map(str, BATCH)), show_default=True, help="nodes")  # fmt: skip
@click.option("--profile", default="p100-aries", show_default=True, help="file or bundled name")
@click.option("--memory", help="of a device, as 16GiB; default unlimited, as in the paper's model")
@click.option("--measure", is_flag=True, help="run both methods, scaled down, on four ranks")
@click.option("--local-profile", type=click.Path(path_type=Path),
              help="of four ranks of this machine, for --measure")  # fmt: skip
@cli.folder("out/table3")
def command(
    models: Sequence[str], devices: Sequence[str], profile: str, memory: str | None, measure: bool,
    local_profile: Path | None, folder: Path,
) -> None:  # fmt: skip
    """Do what is missing, print the tables, write and draw them."""
    known = profiles.load(profile, device_type="cuda")
    limit = None if memory is None else parse_bytes(memory)
    kept = RowStore(folder / "table3.jsonl")
    found = []
    for model in models:
        for count in map(int, devices):
            file = folder / "programs" / f"{model}-{count}.json"
            sizes = {**SHAPES[model], "batch": BATCH[count], "optimizer": "adam"}
            program = captured(file, "gpt", "toy", **sizes)
            for stages in STAGES:
                setting = setting_of(model, count, stages, known, limit)
                parts = [BATCH[count] // n for n in SEQUENCES]
                found += rows(kept, setting, program, known, parts)
    if measure and local_profile is None:
        raise AutoDDLError(
            "--measure needs --local-profile FILE; measure one with `python -m autoddl fit-network "
            "--nproc-per-node 4 -o network.json`"
        )
    ran = []
    if local_profile is not None and measure:
        local = profiles.load(local_profile)
        for model in models:
            for stages in STAGES:
                ran += measured(folder, setting_of(model, 4, stages, local), local)
    report(found, ran, folder)


def setting_of(
    model: str, devices: int, stages: int, profile: Profile, limit: int | None = None
) -> Row:
    """Return what rows have in common: a model on so many devices and stages, priced with a profile."""
    found = {"model": model, "devices": devices, "stages": stages}
    return {**found, "profile": profile.name, "limit_bytes": limit}


def rows(
    kept: RowStore, setting: Row, program: Program, profile: Profile, counts: Sequence[int]
) -> list[Row]:
    """Return both methods' rows for all meshes and these numbers of micro-batches.

    Those that are not kept yet are computed. There is no `step_s` where the plan does not fit, or,
    with no bytes, the mesh divides no input.
    """
    devices, stages = setting["devices"], setting["stages"]
    cluster = Cluster((Level(profile.levels[0], devices),))
    part = stage_cluster(cluster, stages)
    if part is None:
        raise AutoDDLError(f"{devices} devices in {stages} stages: no equal parts")
    given = request(program, profile, cluster, setting["limit_bytes"])
    found = []
    for count in counts:
        micro = None
        for mesh in part.meshes(AXES):
            key = {**setting, "micro_batches": count, "mesh": str(mesh)}
            if not kept.having(**key):
                micro = micro or micro_batch(program, count)
                one = Candidate(stages, count, mesh, SEPARATE_STREAMS)
                for row in list(_rows(micro, one, given)):
                    kept.add({**key, **row})
            found += kept.having(**key)
            head = f"{setting['model']} {devices}: {stages} stages of {mesh}, {count} micro-batches"
            said = ", ".join(f"{r['method']} {_text(r['step_s'])}" for r in kept.having(**key))
            print(f"{head}: {said}", flush=True)
    return found


def stage_cluster(cluster: Cluster, stages: int) -> Cluster | None:
    """Return the devices of one of so many equal stages, outermost levels cut first; None if none are."""
    levels = []
    left = stages
    for level in cluster.levels:
        shared = math.gcd(level.size, left)
        if left > 1 and shared != left and shared != level.size:
            return None
        levels.append(Level(level.name, level.size // shared))
        left //= shared
    if left > 1:
        return None
    kept = [level for level in levels if level.size > 1] or levels[-1:]
    return Cluster(tuple(kept))


def request(
    program: Program, profile: Profile, cluster: Cluster, limit: int | None = None
) -> Request:
    """Return how both methods are searched and cut, within `limit` bytes on a device if there is one."""
    return Request(
        program,
        profile,
        cluster,
        ONEFLOW,
        limit_bytes=limit,
        search="fast",
        stop_gap=0.01,
        budget=TWENTY_SECONDS,
    )


def _rows(micro: Program, candidate: Candidate, given: Request) -> Iterator[Row]:
    try:
        problem = builder.build(micro, candidate.mesh, given.profile)
    except AutoDDLError:  # the mesh divides no dim of an input
        for method in METHODS:
            yield {"method": method, "step_s": None, "memory_bytes": 0}
        return
    tried: list[Staged] = []
    for method, result in results(problem, candidate, given):
        staged = _cut(problem, result, candidate, given)
        tried.append(staged)
        if method == OURS and not _fits(staged, given):  # then states of less memory
            share = int(result.memory_bytes * (given.limit_bytes or 0) / staged.memory_bytes)
            for memory in (share, 1):
                less = dict(results(problem, candidate, given, memory))[OURS]
                tried.append(_cut(problem, less, candidate, given))
            fits = [s for s in tried if _fits(s, given)]
            staged = min(fits, key=lambda s: s.timeline.step_s, default=tried[-1])
        step_s = staged.timeline.step_s if _fits(staged, given) else None
        yield {"method": method, "step_s": step_s, "memory_bytes": staged.memory_bytes}


def _fits(staged: Staged, given: Request) -> bool:
    return given.limit_bytes is None or staged.memory_bytes <= given.limit_bytes


def _cut(
    problem: CostNetwork, result: SearchResult, candidate: Candidate, given: Request
) -> Staged:
    links = Links(given.profile, given.cluster)
    stages, count = candidate.stages, candidate.micro_batches
    return equal_cut(Assigned(problem, result.assignment), stages, count, links, given.limit_bytes)


def results(
    problem: CostNetwork, candidate: Candidate, given: Request, share_bytes: int | None = None
) -> Iterator[tuple[str, SearchResult]]:
    """Yield the assignments of both methods; on one device per stage Megatron is data parallelism.

    Ours takes `share_bytes` of the memory that a search can sum up, or the least there is.
    """
    weighted = repeated(problem, candidate.stages, candidate.micro_batches)
    starts = assignments(weighted)
    manual = starts.get(MEGATRON, starts["data parallel"])
    yield MEGATRON, weighted.result(MEGATRON, manual)
    yield OURS, SOLVERS[given.search](
        weighted,
        SearchOptions(
            budget=20.0, stop_gap=given.stop_gap, seed=given.seed,
            starts=list(starts.values()),
            memory_bytes=share_bytes and max(share_bytes, weighted.least_memory_bytes),
        ),
    )  # fmt: skip


def measured(folder: Path, setting: Row, profile: Profile) -> list[Row]:
    """Return the measured row of each method's best plan for a scaled model on local ranks."""
    from experiments.fidelity import measure
    from experiments.fidelity.workload import BEDS

    kept = RowStore(folder / "measured.jsonl")
    if kept.having(**setting):
        return kept.having(**setting)
    model, stages = setting["model"], setting["stages"]
    program = captured(folder / "programs" / f"{model}-scaled.json", "gpt", "toy", **SCALED[model])
    cluster = Cluster((Level(profile.levels[-1], setting["devices"]),))
    part, given = stage_cluster(cluster, stages), request(program, profile, cluster)
    assert part is not None
    count = max(2, stages)
    plans: dict[str, list[Plan]] = {method: [] for method in METHODS}
    for mesh in part.meshes(AXES):
        candidate = Candidate(stages, count, mesh, SEPARATE_STREAMS)
        problem = builder.build(micro_batch(program, count), mesh, profile)
        for method, result in results(problem, candidate, given):
            staged = _cut(problem, result, candidate, given)
            plans[method].append(
                Plan.of(staged_plan(staged, result, limit=given.limit_bytes, seed=given.seed))
            )
    for method, found in plans.items():
        plan = min(found, key=lambda p: p.estimate.step_s)
        file = folder / "plans" / f"{model}-{stages}-{method}.json"
        file.parent.mkdir(exist_ok=True)
        plan.save(file)
        with measure.running(BEDS["loopback-4"]) as (run, _):
            seconds = measure.step_s(run, "gpt", SCALED[model], file)
        kept.add({
            **setting, "micro_batches": count, "mesh": str(plan.mesh), "method": method,
            "step_s": seconds, "predicted_s": plan.estimate.step_s,
            "memory_bytes": plan.estimate.memory_bytes,
        })  # fmt: skip
    return kept.having(**setting)


def _text(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:.4g} s"


def report(found: Sequence[Row], ran: Sequence[Row], folder: Path) -> None:
    """Print the table of predictions beside the paper's, and that of measurements; write and draw."""
    table = summary(found)
    print(frames.text(table, COLUMNS))
    for wanted, ours in PAPER:
        print(f"paper: Megatron {wanted} s, AutoDDL {ours} s, {ours / wanted - 1:+.0%}")
    if ran:
        print(frames.text(summary(ran), COLUMNS))
    frames.save(pd.DataFrame(found), folder, "table3", measured=list(ran))
    draw(table, folder / "table3")


def summary(found: Sequence[Row]) -> pd.DataFrame:
    """Return for each setting the fastest row of either method, side by side."""
    frame = pd.DataFrame(found)
    frame["step_s"] = frame.step_s.astype(float)
    table = frame[SETTING].drop_duplicates()
    for method in METHODS:
        mine = frame[frame.method == method].dropna(subset="step_s")
        best = mine.loc[mine.groupby(SETTING).step_s.idxmin()]
        named = {
            "s": best.step_s, "mesh": best.mesh, "m": best.micro_batches,
            "GiB": best.memory_bytes / 2**30,
        }  # fmt: skip
        columns = {f"{method} {name}": values for name, values in named.items()}
        table = table.merge(best[SETTING].assign(**columns), on=SETTING, how="left")
    table["change"] = table[f"{OURS} s"] / table[f"{MEGATRON} s"] - 1
    return table


def draw(table: pd.DataFrame, file: Path) -> None:
    """Draw the seconds of a step of both methods as bars, one pair for each setting."""
    figure, ((axis,),) = figures.panels(size=(1.5 + 0.8 * len(table), 4.0))
    for shift, method, colour in zip((-0.2, 0.2), METHODS, figures.COLOURS, strict=False):
        places = [n + shift for n in range(len(table))]
        axis.bar(places, table[f"{method} s"].fillna(0.0), 0.4, color=colour, label=method)
    names = ["\n".join(map(str, row)) for row in table[SETTING].to_numpy().tolist()]
    axis.set_xticks(range(len(table)), names)
    axis.set(ylabel="predicted step (s)", xlabel="model, devices, stages")
    axis.legend(frameon=False)
    figures.save(figure, file)


if __name__ == "__main__":
    sys.exit(cli.run(command, "figures.table3"))
