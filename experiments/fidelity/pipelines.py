"""Simulated against measured steps of pipelines: `python -m experiments.fidelity.pipelines`.

Plans of three models with two and four stages, one of each model cut badly on purpose, train on a
testbed with a node for each stage. Links are calibrated on the same nodes, ops with as many ranks as
run; where stages share cores the simulation lets them take turns. Everything finished is kept in the
folder, so that an interrupted run goes on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
from msgspec import structs

from autoddl.api import Plan
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.pipeline.pipeline_step import COMPUTE
from autoddl.perfmodel.profile import Profile
from autoddl.planner.assemble import staged_plan
from autoddl.planner.stages.cuts import equal_cut
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import ONCE, Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.reductions.pipeline_objective import repeated
from autoddl.search.result import SearchOptions
from autoddl.search.solvers.named import SOLVERS
from experiments.fidelity import measure, scores, shared_cores
from experiments.fidelity.workload import Bed
from experiments.lib import cli, frames
from experiments.lib import oneflow_problems as builder
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 4, "width": 256, "heads": 8, "sequence": 32, "vocabulary": 512, "batch": 16,
    },
    "mlp": {"widths": [256, *([1024, 512] * 6), 256], "batch": 256},
    "vgg13": {"image": 32, "classes": 128, "channel_scale": 1 / 4, "dense": 1024, "batch": 32},
}  # fmt: skip
# A core's flop for each byte that its node can send are about those of a GPU beside 200 Gbit/s.
RATE = "50mbit"
PASSES = 3  # apart in time, so that a slow phase of the machine does not hit all
SEARCH_S = 5.0
COLUMNS: frames.Formats = {
    "plan": "{}", "predicted_s": "{:.4f}", "measured_s": "{:.4f}", "error": "{:+.1%}",
}  # fmt: skip


@dataclass(frozen=True)
class PipelineCase:
    """A plan to make: `shares` are those of the forward and backward seconds by stage, None the best."""

    model: str
    stages: int
    mesh: int
    micro_batches: int
    shares: tuple[float, ...] | None = None

    @property
    def bed(self) -> Bed:
        """Return the testbed: a node for each stage."""
        return Bed(f"{self.stages}x{self.mesh}-{RATE}", self.stages, self.mesh, RATE)

    @property
    def ranks(self) -> int:
        """Return how many ranks run it."""
        return self.stages * self.mesh

    @property
    def name(self) -> str:
        """Return a file name: gpt-4x1-m8, with the shares of a given cut behind."""
        cut = "".join(f"-{share * 100:.0f}" for share in self.shares or ())
        return f"{self.model}-{self.stages}x{self.mesh}-m{self.micro_batches}{cut}"


CASES = tuple(
    PipelineCase(model, *rest)
    for model in MODELS
    for rest in ((2, 1, 4, None), (2, 1, 8, (0.7, 0.3)), (2, 2, 4, None), (4, 1, 8, None))
)


@click.command(help=__doc__)
@click.option("--passes", default=PASSES, show_default=True, help="times each plan is run")
@click.option("--only", default="", help="plans whose names have this in them")
@click.option("--predict", is_flag=True, help="run nothing; report what the folder has")
@cli.folder("out/fidelity_pipelines")
def command(passes: int, only: str, predict: bool, folder: Path) -> None:
    """Calibrate and run what is missing; print, write and draw what was simulated and measured."""
    cases = [case for case in CASES if only in case.name]
    for number in range(1, 1 if predict else passes + 1):
        measure_all(cases, folder, number)
    found = [row(case, folder) for case in cases if _timed(case, folder)]
    if found:
        report(pd.DataFrame(found), folder)


def staged(case: PipelineCase, folder: Path, profile: Profile) -> Staged:
    """Return the plan of a case as the simulation sees it on this machine.

    The states of its tensors are searched once; they and the cut are kept in a file.
    """
    program = captured(folder / f"{case.model}.json", case.model, "toy", **MODELS[case.model])
    mesh = Mesh.parse(f"[gpu {case.mesh}]")
    problem = builder.build(micro_batch(program, case.micro_batches), mesh, profile)
    file = folder / "plans" / f"{case.name}.states.json"
    levels = [("node", case.stages), ("gpu", case.mesh)]
    cluster = Cluster(tuple(Level(name, size) for name, size in levels if size > 1))
    links = Links(profile, cluster)
    places, count = positions(problem.program), case.micro_batches
    if not file.exists():
        weighted = repeated(problem, case.stages, count)
        result = SOLVERS["exact"](weighted, SearchOptions(budget=SEARCH_S, seed=0))
        cut = equal_cut(Assigned(problem, result.assignment), case.stages, count, links)
        bounds = cut.bounds if case.shares is None else _bounds(cut, case.shares)
        cut = Staged.equal(cut.assigned(0), places, bounds, count, links)
        file.parent.mkdir(parents=True, exist_ok=True)
        Plan.of(staged_plan(cut, result)).save(_plan_file(case, folder))
        kept = {"assignment": [int(n) for n in result.assignment], "bounds": list(bounds)}
        file.write_text(json.dumps(kept) + "\n")
    kept = json.loads(file.read_text())
    return Staged.equal(Assigned(problem, kept["assignment"]), places, kept["bounds"], count, links)


def _bounds(whole: Staged, shares: Sequence[float]) -> list[int]:
    """Return the positions at which the stages' shares of the seconds of a micro-batch end."""
    found = positions(whole.program)
    seconds = np.zeros(found.count)
    for spent in whole.planned:
        if spent.stream == COMPUTE and spent.phase != ONCE:
            seconds[found.op[spent.of[0]]] += spent.seconds
    ends = np.cumsum(seconds) / seconds.sum()
    return [int(n) for n in np.searchsorted(ends, np.cumsum(shares)[:-1])]


def _plan_file(case: PipelineCase, folder: Path) -> Path:
    return folder / "plans" / f"{case.name}.json"


def measure_all(cases: Sequence[PipelineCase], folder: Path, number: int) -> None:
    """Calibrate what is not yet, and time each plan that has been timed less often than that."""
    folder.mkdir(parents=True, exist_ok=True)
    for ranks in sorted({case.ranks for case in cases}):
        shared_cores.time_ops(_ops_file(folder, ranks), ranks, number)
    for bed in dict.fromkeys(case.bed for case in cases):
        mine = [case for case in cases if case.bed == bed and len(_timed(case, folder)) < number]
        if not mine:
            continue
        with measure.running(bed) as (run_ranks, made):
            place = folder / bed.name
            place.mkdir(exist_ok=True)
            device = shared_cores.device(_ops_file(folder, mine[0].ranks), mine[0].ranks)
            file = place / "device.json"
            Profile(
                "device", str(place), "measured", "cpu", ("gpu",), (), {profiles.ALIKE: device}
            ).save(file)
            measure.calibrate(bed, made, place, _calibrated(bed), device=file)
            for case in mine:
                run(case, folder, run_ranks)


def _calibrated(bed: Bed) -> list[str]:
    """Return the options of fit-network: what such pipelines send, in pairs of ranks.

    Of shorter messages a good part passes in the burst of the token bucket, at no cost of its own.
    """
    sizes = ["--minbytes", "64K", "--maxbytes", "1M", "--stepfactor", "2", "--budget", "60"]
    if bed.ranks == 1:
        return [*sizes, "--collectives", "send-receive"]
    return [*sizes, "--group-sizes", "2"]


def profile_of(case: PipelineCase, folder: Path) -> Profile:
    """Return the profile of the testbed, with ops as so many ranks of this machine take for them."""
    device = shared_cores.device(_ops_file(folder, case.ranks), case.ranks)
    return structs.replace(
        profiles.load(folder / case.bed.name / "network.json"), devices={profiles.ALIKE: device}
    )


def run(case: PipelineCase, folder: Path, run_ranks: measure.Run) -> None:
    """Time a plan."""
    found = staged(case, folder, profile_of(case, folder))
    said_s = shared_cores.step_s(found.step, case.mesh)
    sizes = MODELS[case.model]
    measured_s = measure.step_s(run_ranks, case.model, sizes, _plan_file(case, folder))
    RowStore(folder / "runs.jsonl").add({"plan": case.name, "step_s": measured_s})
    text = f"measured {measured_s * 1e3:.0f} ms, simulated {said_s * 1e3:.0f} ms"
    print(f"pipelines: {case.name}: {text}", file=sys.stderr, flush=True)


def _ops_file(folder: Path, ranks: int) -> Path:
    return folder / f"ops-{ranks}.jsonl"


def _timed(case: PipelineCase, folder: Path) -> list[float]:
    """Return the seconds of a step in every run of a plan."""
    return [row["step_s"] for row in RowStore(folder / "runs.jsonl").having(plan=case.name)]


def row(case: PipelineCase, folder: Path) -> Row:
    """Return what was simulated and measured of a case."""
    found = staged(case, folder, profile_of(case, folder))
    cost = found.estimate(case.name)
    said = shared_cores.step_s(found.step, case.mesh)
    return {
        "bed": case.bed.name, "model": case.model, "plan": case.name, "name": case.name,
        "compute_s": cost.compute_s, "communication_s": cost.communication_s,
        "uncertainty_s": cost.uncertainty_s * said / found.timeline.step_s, "predicted_s": said,
        "measured_s": min(_timed(case, folder)),
        "measured_communication_s": 0.0,
    }  # fmt: skip


def report(frame: pd.DataFrame, folder: Path) -> None:
    """Print the plans and their score; write and draw them."""
    found, score = scores.with_errors(frame), scores.score(frame)
    print(frames.text(found, COLUMNS))
    print(
        f"{score['plans']} plans: mean error {score['mean_error']:.1%}, worst "
        f"{score['worst_error']:.1%}, bias {score['bias']:+.1%}, Spearman {score['spearman']:.3f}"
    )
    frames.save(found, folder, "pipelines", score=score)
    scores.draw(frame, folder / "pipelines")


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity.pipelines"))
