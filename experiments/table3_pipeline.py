"""Transformers with 1, 2, 4 stages (AutoDDL, table III): `python -m experiments.table3_pipeline`.

For a wide and a deep Transformer on nodes of one P100 each: Megatron with its best grid inside the
stages against ours, with the same numbers of stages and micro-batches, both cut and simulated alike.
With `--measure`, both scaled down, on ranks of this machine. Each finished candidate is a line of
table3.jsonl at once: a run that is cut off goes on from there. As in the paper's model memory is no
limit unless one is given; the table tells what OneFlow would take.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import autoddl
from autoddl.arguments import parse_bytes
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.pipelines import Options, stage_cluster
from autoddl.plan import Plan
from autoddl.sbp.mesh import Cluster, Level
from autoddl.sbp.micro_batch import micro_batch
from autoddl.sbp.program import Program
from autoddl.search import builder
from autoddl.search.baselines import assignments
from autoddl.search.problem import Problem
from autoddl.search.repeated import repeated
from autoddl.search.result import SearchResult
from autoddl.search.solvers import SOLVERS
from autoddl.stage_cuts import Candidate, cut_into_stages, staged_plan
from autoddl.staging import Links, Staged

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
_EXIT_BAD_INPUT, _EXIT_INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Setting:
    """A model on so many devices, with so many stages; `profile` is where it is predicted.

    `memory_bytes` is the limit of a device, None without.
    """

    model: str
    devices: int
    stages: int
    profile: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Row:
    """What became of a method with one number of micro-batches on one mesh.

    There is no `step_s` where the plan does not fit, or, with no bytes, the mesh divides no input.
    """

    setting: Setting
    method: str
    micro_batches: int
    mesh: str
    step_s: float | None
    memory_bytes: int
    measured_s: float | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is missing, print the tables, write JSON and PNG; exit code 2 for bad input."""
    args = _parser().parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        profile = profiles.load(args.profile, device_type="cuda")
        limit = None if args.memory is None else parse_bytes(args.memory)
        rows = []
        for model in args.models.split(","):
            if model not in SHAPES:
                raise AutoDDLError(f"--models: got {model!r}; there are {', '.join(SHAPES)}")
            for devices in args.devices:
                if devices not in BATCH:
                    raise AutoDDLError(f"--devices: got {devices}; allowed are {list(BATCH)}")
                program = captured(args.folder, model, devices)
                for stages in STAGES:
                    setting = Setting(model, devices, stages, profile.name, limit)
                    file, counts = (
                        args.folder / "table3.jsonl",
                        [BATCH[devices] // n for n in SEQUENCES],
                    )
                    rows += candidates(file, setting, program, profile, counts)
        measured = _measure(args) if args.measure else []
    except AutoDDLError as error:
        print(f"table3_pipeline: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"table3_pipeline: interrupted; {args.folder} has what is done", file=sys.stderr)
        return _EXIT_INTERRUPTED
    _report(rows, measured, args.folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.table3_pipeline", description=__doc__
    )
    add = parser.add_argument
    add("--models", default=",".join(SHAPES), help=", ".join(SHAPES))
    add("--devices", type=int, nargs="+", default=list(BATCH), help="nodes; default all")
    add("--profile", default="p100-aries", help="file or bundled name; default p100-aries")
    add("--memory", help="of a device, as 16GiB; default unlimited, as in the paper's model")
    add("--measure", action="store_true", help="run both methods, scaled down, on four ranks")
    add("--local-profile", type=Path, help="of four ranks of this machine, for --measure")
    add("--folder", type=Path, default=Path("out/table3"), help="state and results")
    return parser


def captured(folder: Path, model: str, devices: int) -> Program:
    """Return the program of a model of the paper, traced once without memory for its parameters."""
    file = folder / "programs" / f"{model}-{devices}.json"
    if not file.exists():
        from experiments.models import gpt

        print(f"tracing {model}, {BATCH[devices]} sequences", flush=True)
        with autoddl.abstract_parameters():
            graph, inputs = gpt.build(**SHAPES[model], batch=BATCH[devices], optimizer="adam")
        file.parent.mkdir(parents=True, exist_ok=True)
        autoddl.capture(graph, *inputs).save(file)
    return Program.load(file)


def candidates(
    file: Path, setting: Setting, program: Program, profile: Profile, counts: Sequence[int]
) -> list[Row]:
    """Return both methods' rows for all meshes and these numbers of micro-batches.

    Those that `file` lacks are added to it.
    """
    known = [row for row in read(file) if row.setting == setting]
    level = profile.levels[0]
    cluster = Cluster((Level(level, setting.devices),))
    part = stage_cluster(cluster, setting.stages)
    if part is None:
        raise AutoDDLError(f"{setting.devices} devices in {setting.stages} stages: no equal parts")
    given = options(profile, cluster, setting.memory_bytes)
    for count in counts:
        todo = [
            mesh
            for mesh in part.meshes(AXES)
            if not any((r.micro_batches, r.mesh) == (count, str(mesh)) for r in known)
        ]
        micro = micro_batch(program, count) if todo else program
        for mesh in todo:
            candidate = Candidate(setting.stages, count, mesh)
            found = list(_rows(setting, micro, candidate, given))
            known += found
            with file.open("a") as out:
                out.writelines(json.dumps(asdict(row)) + "\n" for row in found)
            said = ", ".join(f"{r.method} {_text(r.step_s)}" for r in found)
            print(f"{setting.model} {setting.devices}: {setting.stages} stages of {mesh}, "
                  f"{count} micro-batches: {said}", flush=True)  # fmt: skip
    return known


def options(profile: Profile, cluster: Cluster, limit: int | None = None) -> Options:
    """Return how both methods are searched and cut, within `limit` bytes on a device if there is one."""
    return Options(
        profile, cluster, limit, "fast", 20.0, 0.01, 0,
        lambda mesh, program: builder.build(program, mesh, profile),
    )  # fmt: skip


def _rows(setting: Setting, micro: Program, candidate: Candidate, given: Options) -> Iterator[Row]:
    try:
        problem = given.build(candidate.mesh, micro)
    except AutoDDLError:  # the mesh divides no dim of an input
        for method in METHODS:
            yield Row(setting, method, candidate.micro_batches, str(candidate.mesh), None, 0)
        return
    tried: list[Staged] = []
    for method, result in results(problem, candidate, given):
        staged = _cut(problem, result, candidate, given)
        tried.append(staged)
        if method == OURS and not _fits(staged, given):  # then states of less memory
            share = int(result.memory_bytes * (given.limit_bytes or 0) / staged.needed_bytes)
            for memory in (share, 1):
                less = dict(results(problem, candidate, given, memory))[OURS]
                tried.append(_cut(problem, less, candidate, given))
            fits = [s for s in tried if _fits(s, given)]
            staged = min(fits, key=lambda s: s.timeline.step_s, default=tried[-1])
        yield Row(
            setting, method, candidate.micro_batches, str(candidate.mesh),
            staged.timeline.step_s if _fits(staged, given) else None, staged.needed_bytes,
        )  # fmt: skip


def _fits(staged: Staged, given: Options) -> bool:
    return given.limit_bytes is None or staged.needed_bytes <= given.limit_bytes


def _cut(problem: Problem, result: SearchResult, candidate: Candidate, given: Options) -> Staged:
    links = Links(given.profile, given.cluster, candidate.mesh.size)
    return cut_into_stages(problem, result.assignment, candidate, links, given.limit_bytes)


def results(
    problem: Problem, candidate: Candidate, given: Options, share_bytes: int | None = None
) -> Iterator[tuple[str, SearchResult]]:
    """Yield the assignments of both methods; on one device per stage Megatron is data parallelism.

    Ours takes `share_bytes` of the memory that a search can sum up, or the least there is.
    """
    weighted = repeated(problem, candidate.stages, candidate.micro_batches)
    starts = assignments(weighted)
    manual = starts.get(MEGATRON, starts["data parallel"])
    yield MEGATRON, weighted.result(MEGATRON, manual)
    yield OURS, SOLVERS[given.search](
        weighted, budget=given.budget, stop_gap=given.stop_gap, seed=given.seed,
        starts=list(starts.values()),
        memory_bytes=share_bytes and max(share_bytes, weighted.least_memory_bytes),
    )  # fmt: skip


def read(file: Path) -> list[Row]:
    """Return the rows of a file; a last line that was cut off is dropped."""
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    lines = [json.loads(line) for line in whole.splitlines()]
    return [Row(Setting(**line.pop("setting")), **line) for line in lines]


def best(rows: Iterable[Row], method: str) -> Row | None:
    """Return the fastest row of a method."""
    found = [row for row in rows if row.method == method and row.step_s is not None]
    return min(found, key=lambda row: row.step_s or 0.0, default=None)


def _measure(args: argparse.Namespace) -> list[Row]:
    """Run the best plans of both methods, scaled down, on four ranks of this machine."""
    if args.local_profile is None:
        raise AutoDDLError(
            "--measure needs --local-profile FILE; measure one with `python -m autoddl.fit_network "
            "--nproc-per-node 4 -o network.json`"
        )
    profile = profiles.load(args.local_profile)
    return [
        row
        for model in args.models.split(",")
        for stages in STAGES
        for row in measured(args.folder, Setting(model, 4, stages, profile.name), profile)
    ]


def measured(folder: Path, setting: Setting, profile: Profile) -> list[Row]:
    """Return the measured row of each method's best plan for a scaled model on local ranks."""
    from experiments.fidelity import measure
    from experiments.fidelity.workload import bed

    known = [row for row in read(folder / "measured.jsonl") if row.setting == setting]
    if known:
        return known
    sizes = SCALED[setting.model]
    program = measure.captured(folder / "programs" / f"{setting.model}-scaled.json", "gpt", sizes)
    cluster = Cluster((Level(profile.levels[-1], setting.devices),))
    part, given = stage_cluster(cluster, setting.stages), options(profile, cluster)
    assert part is not None
    count = max(2, setting.stages)
    plans: dict[str, list[Plan]] = {method: [] for method in METHODS}
    for mesh in part.meshes(AXES):
        candidate = Candidate(setting.stages, count, mesh)
        problem = given.build(mesh, micro_batch(program, count))
        for method, result in results(problem, candidate, given):
            staged = _cut(problem, result, candidate, given)
            plans[method].append(
                staged_plan(staged, result, limit=given.limit_bytes, seed=given.seed)
            )
    rows = []
    for method, found in plans.items():
        plan = min(found, key=lambda p: p.estimate.step_s)
        file = folder / "plans" / f"{setting.model}-{setting.stages}-{method}.json"
        file.parent.mkdir(exist_ok=True)
        plan.save(file)
        with measure.running(bed("loopback-4")) as (run, _):
            seconds = measure.step_s(run, "gpt", sizes, file)
        said, needed = plan.estimate.step_s, plan.estimate.memory_bytes
        rows.append(Row(setting, method, count, str(plan.mesh), said, needed, seconds))
    with (folder / "measured.jsonl").open("a") as out:
        out.writelines(json.dumps(asdict(row)) + "\n" for row in rows)
    return rows


def _text(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:.4g} s"


def _report(rows: Sequence[Row], measured: Sequence[Row], folder: Path) -> None:
    lines = summary(rows)
    Console().print(_table(lines))
    for wanted, ours in PAPER:
        print(f"paper: Megatron {wanted} s, AutoDDL {ours} s, {ours / wanted - 1:+.0%}")
    if measured:
        Console().print(_table(summary([replace(r, step_s=r.measured_s) for r in measured])))
    said: dict[str, Any] = {
        "predicted": [asdict(row) for row in rows],
        "measured": [asdict(row) for row in measured],
    }
    (folder / "table3.json").write_text(json.dumps(said, indent=1) + "\n")
    draw(lines, folder / "table3.png")
    print(f"wrote {folder}/table3.json, table3.png")


def summary(rows: Sequence[Row]) -> list[tuple[Setting, Row | None, Row | None]]:
    """Return for each setting the best rows of Megatron and of ours."""
    settings = dict.fromkeys(row.setting for row in rows)
    found = []
    for setting in settings:
        mine = [row for row in rows if row.setting == setting]
        found.append((setting, best(mine, MEGATRON), best(mine, OURS)))
    return found


def _table(lines: Iterable[tuple[Setting, Row | None, Row | None]]) -> Table:
    table = Table("model", "devices", "stages", "Megatron", "", "ours", "", "change")
    for setting, manual, ours in lines:
        change = ""
        if manual is not None and ours is not None and manual.step_s and ours.step_s:
            change = f"{ours.step_s / manual.step_s - 1:+.1%}"
        cells = [
            text
            for row in (manual, ours)
            for text in (
                _text(row.step_s if row else None),
                f"{row.mesh}, m = {row.micro_batches}, {row.memory_bytes / 2**30:.0f} GiB"
                if row
                else "",
            )
        ]
        table.add_row(setting.model, str(setting.devices), str(setting.stages), *cells, change)
    return table


def draw(lines: Sequence[tuple[Setting, Row | None, Row | None]], file: Path) -> None:
    """Draw the seconds of a step of both methods as bars, one pair for each setting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(1.5 + 0.8 * len(lines), 4.0))
    for shift, index, colour in ((-0.2, 1, "#0072B2"), (0.2, 2, "#D55E00")):
        heights = [(line[index].step_s or 0.0) if line[index] else 0.0 for line in lines]  # type: ignore[union-attr]
        places = [n + shift for n in range(len(lines))]
        axis.bar(places, heights, 0.4, color=colour, label=METHODS[index - 1])
    names = [f"{s.model}\n{s.devices}\n{s.stages}" for s, _, _ in lines]
    axis.set_xticks(range(len(lines)), names)
    axis.set(ylabel="predicted step (s)", xlabel="model, devices, stages")
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
