"""Simulated against measured steps of pipelines: `python -m experiments.fidelity.pipelines`.

Plans of three models with two and four stages, one of each model cut badly on purpose, train on a
testbed with a node for each stage. Links are calibrated on the same nodes, ops with as many ranks as
run; where stages share cores the simulation lets them take turns. Everything finished is kept in the
folder, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from autoddl.errors import AutoDDLError
from autoddl.make_plan import Assigned
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.micro_batch import micro_batch
from autoddl.sbp.positions import positions
from autoddl.search import builder
from autoddl.search.repeated import repeated
from autoddl.search.solvers import SOLVERS
from autoddl.stage_cuts import Candidate, cut_into_stages, estimate, staged_plan
from autoddl.staging import Links, Staged
from experiments.fidelity import measure, report, shared_cores
from experiments.fidelity.report import Row
from experiments.fidelity.workload import Bed

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
_EXIT_BAD_INPUT = 2


@dataclass(frozen=True)
class Case:
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
        cut = "-".join(f"{share:.0%}".rstrip("%") for share in self.shares or ())
        return f"{self.model}-{self.stages}x{self.mesh}-m{self.micro_batches}" + f"-{cut}" * bool(
            cut
        )


CASES = tuple(
    Case(model, *rest)
    for model in MODELS
    for rest in (
        (2, 1, 4, None),
        (2, 1, 8, (0.7, 0.3)),
        (2, 2, 4, None),
        (4, 1, 8, None),
    )
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0, or 2 for bad input."""
    args = _parser().parse_args(argv)
    try:
        cases = [case for case in CASES if args.only in case.name]
        for number in range(1, args.passes + 1 if not args.predict else 1):
            measure_all(cases, args.folder, number)
        rows = [found for case in cases if (found := row(case, args.folder)) is not None]
    except AutoDDLError as error:
        print(f"pipelines: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"pipelines: interrupted; {args.folder} has what is done", file=sys.stderr)
        return 130
    if rows:
        _report(rows, args.folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.fidelity.pipelines", description=__doc__
    )
    add = parser.add_argument
    add("--folder", type=Path, default=Path("out/fidelity_pipelines"), help="state and results")
    add("--passes", type=int, default=PASSES, metavar="N", help="times each plan is run")
    add("--only", default="", metavar="TEXT", help="plans whose names have this in them")
    add("--predict", action="store_true", help="run nothing; report what the folder has")
    return parser


def staged(case: Case, folder: Path, profile: Profile) -> Staged:
    """Return the plan of a case as the simulation sees it on this machine.

    The states of its tensors are searched once; they and the cut are kept in a file.
    """
    program = measure.captured(folder / f"{case.model}.json", case.model, MODELS[case.model])
    mesh = Mesh.parse(f"[gpu {case.mesh}]")
    candidate = Candidate(case.stages, case.micro_batches, mesh)
    problem = builder.build(micro_batch(program, case.micro_batches), mesh, profile)
    file = folder / "plans" / f"{case.name}.states.json"
    levels = [("node", case.stages), ("gpu", case.mesh)]
    cluster = Cluster(tuple(Level(name, size) for name, size in levels if size > 1))
    links = Links(profile, cluster, mesh.size)
    if file.exists():
        kept = json.loads(file.read_text())
        assigned, bounds = Assigned(problem, kept["assignment"]), kept["bounds"]
        found = Staged(assigned, positions(problem.program), bounds, case.micro_batches, links)
    else:
        weighted = repeated(problem, case.stages, case.micro_batches)
        result = SOLVERS["exact"](weighted, budget=SEARCH_S, seed=0)
        found = cut_into_stages(problem, result.assignment, candidate, links)
        if case.shares is not None:
            bounds = _bounds(found, case.shares)
            found = Staged(
                found.assigned, positions(problem.program), bounds, case.micro_batches, links
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"assignment": [int(n) for n in result.assignment], "bounds": list(found.bounds)}
        file.write_text(json.dumps(kept) + "\n")
        plan = staged_plan(found, result, limit=None, seed=0)
        plan.save(_plan_file(case, folder))
    return found


def _bounds(whole: Staged, shares: Sequence[float]) -> list[int]:
    """Return the positions at which the stages' shares of the seconds of a micro-batch end."""
    found = positions(whole.program)
    seconds = np.zeros(found.count)
    for (_, phase, price), op in zip(whole.prices["compute"], whole.program.ops, strict=True):
        if phase != "once":
            seconds[found.op[op.name]] += price.seconds
    ends = np.cumsum(seconds) / seconds.sum()
    return [int(n) for n in np.searchsorted(ends, np.cumsum(shares)[:-1])]


def _plan_file(case: Case, folder: Path) -> Path:
    return folder / "plans" / f"{case.name}.json"


def measure_all(cases: Sequence[Case], folder: Path, number: int) -> None:
    """Calibrate what is not yet, and time each plan that has been timed less often than that."""
    folder.mkdir(parents=True, exist_ok=True)
    for ranks in sorted({case.ranks for case in cases}):
        shared_cores.time_ops(_ops_file(folder, ranks), ranks, number)
    for bed in dict.fromkeys(case.bed for case in cases):
        mine = [case for case in cases if case.bed == bed and _count(case, folder) < number]
        if not mine:
            continue
        with measure.running(bed) as (run_ranks, made):
            place = folder / bed.name
            place.mkdir(exist_ok=True)
            device = shared_cores.device(_ops_file(folder, mine[0].ranks), mine[0].ranks)
            Profile("device", str(place), "measured", "cpu", ("gpu",), (), device).save(
                place / "device.json"
            )
            measure.calibrate(bed, made, place, _calibrated(bed))
            for case in mine:
                run(case, folder, run_ranks)


def _calibrated(bed: Bed) -> list[str]:
    """Return the options of fit_network: what such pipelines send, in pairs of ranks.

    Of shorter messages a good part passes in the burst of the token bucket, at no cost of its own.
    """
    sizes = ["--minbytes", "64K", "--maxbytes", "1M", "--stepfactor", "2", "--budget", "60"]
    if bed.ranks == 1:
        return [*sizes, "--collectives", "send-receive"]
    return [*sizes, "--group-sizes", "2"]


def profile_of(case: Case, folder: Path) -> Profile:
    """Return the profile of the testbed, with ops as so many ranks of this machine take for them."""
    device = shared_cores.device(_ops_file(folder, case.ranks), case.ranks)
    return replace(profiles.load(folder / case.bed.name / "network.json"), device=device)


def run(case: Case, folder: Path, run_ranks: measure.Run) -> None:
    """Time a plan."""
    found = staged(case, folder, profile_of(case, folder))
    plan = _plan_file(case, folder)
    measured_s = measure.step_s(run_ranks, case.model, MODELS[case.model], plan)
    with _result_file(case, folder).open("a") as out:
        out.write(json.dumps({"plan": plan.stem, "step_s": measured_s}) + "\n")
    print(
        f"pipelines: {case.name}: measured {measured_s * 1e3:.0f} ms, "
        f"simulated {shared_cores.step_s(found.step, case.mesh) * 1e3:.0f} ms",
        file=sys.stderr,
        flush=True,
    )


def _ops_file(folder: Path, ranks: int) -> Path:
    return folder / f"ops-{ranks}.jsonl"


def _result_file(case: Case, folder: Path) -> Path:
    return folder / f"{case.name}.jsonl"


def _count(case: Case, folder: Path) -> int:
    """Return how often a plan has been timed."""
    result = _result_file(case, folder)
    return len(result.read_text().splitlines()) if result.exists() else 0


def row(case: Case, folder: Path) -> Row | None:
    """Return what was simulated and measured of a case, None if it has not been run."""
    if not _count(case, folder):
        return None
    lines = [json.loads(line) for line in _result_file(case, folder).read_text().splitlines()]
    found = staged(case, folder, profile_of(case, folder))
    cost = estimate(case.name, found)
    said = shared_cores.step_s(found.step, case.mesh)
    return Row(
        case.bed.name, case.model, case.name, case.name, cost.compute_s, cost.communication_s,
        cost.uncertainty_s * said / found.timeline.step_s, said,
        min(line["step_s"] for line in lines), 0.0,
    )  # fmt: skip


def _report(rows: list[Row], folder: Path) -> None:
    report.write_csv(rows, folder / "pipelines.csv")
    report.draw(rows, folder / "pipelines.png")
    score = report.score("pipelines", rows)
    said = {"score": asdict(score), "plans": [asdict(r) | {"error": r.error} for r in rows]}
    (folder / "pipelines.json").write_text(json.dumps(said, indent=1) + "\n")
    table = Table("plan", "simulated ms", "measured ms", "error")
    for column in table.columns[1:]:
        column.justify = "right"
    for r in rows:
        table.add_row(
            r.plan, f"{r.predicted_s * 1e3:.1f}", f"{r.measured_s * 1e3:.1f}", f"{r.error:+.1%}"
        )
    Console().print(table)
    print(
        f"{score.plans} plans: mean error {score.mean_error:.1%}, worst {score.worst_error:.1%}, "
        f"bias {score.bias:+.1%}, Spearman {score.spearman:.3f}"
    )
    print(f"wrote {folder}/pipelines.csv, pipelines.png, pipelines.json")


if __name__ == "__main__":
    sys.exit(main())
