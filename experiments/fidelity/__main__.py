"""Predict plans that no calibration has seen, run them, compare: `python -m experiments.fidelity`.

A testbed is calibrated with fit_device and fit_network, then random and baseline plans of GPT, VGG13
and a mixture of experts train on it. Everything finished is kept in the folder, so that an
interrupted run goes on. Without root only plain loopback can be used (`--beds loopback-4`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.make_plan import layout_of
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.timeline import predict
from autoddl.sbp.program import Program
from experiments.fidelity import measure, report, workload
from experiments.fidelity.measure import Measured
from experiments.fidelity.report import Row
from experiments.fidelity.workload import Bed

_EXIT_BAD_INPUT = 2
SIZES = ("--minbytes", "1K", "--maxbytes", "4M")  # of messages: those of the models
SHAPED = ("2x2-500mbit", "4x1-200mbit", "2x4-200mbit")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0, or 2 for bad input."""
    args = _parser().parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        rows = []
        for name in args.beds.split(","):
            rows += _bed(args, workload.bed(name))
    except AutoDDLError as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"fidelity: interrupted; {args.folder} has what is done", file=sys.stderr)
        return 130
    if rows:
        _report(rows, args.folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.fidelity", description=__doc__)
    add = parser.add_argument
    add("--beds", default=",".join((*SHAPED, "loopback-4")), help=", ".join(workload.BEDS))
    add("--models", default=",".join(workload.MODELS), help="comma-separated")
    add("--plans", type=int, default=12, metavar="N", help="of each model on each testbed")
    add("--folder", type=Path, default=Path("out/fidelity"), help="state and results")
    add("--profile", help="predict with this profile instead of the testbed's own")
    add("--predict", action="store_true", help="run nothing; report what the folder has")
    return parser


def _bed(args: argparse.Namespace, bed: Bed) -> list[Row]:
    """Calibrate, run and predict all plans of a testbed."""
    place = args.folder / bed.name
    programs = {m: measure.captured(args.folder / f"{m}.json", m) for m in args.models.split(",")}
    if args.predict:
        found = {m: measure.known(place, m) for m in programs}
    else:
        with measure.running(bed) as (run, made):
            measure.calibrate(bed, made, place, SIZES)
            found = {}
            for model, program in programs.items():
                files = measure.prepare(place, bed, program, model, args.plans)
                done = _Count(f"{bed.name}: {model}", measure.PASSES * len(files))
                found[model] = measure.measure(
                    run, place, model, args.folder / f"{model}.json", files, done
                )
    profile = profiles.load(args.profile or place / "network.json")
    return [
        _row(bed, place, result, programs[model], profile)
        for model, results in found.items()
        for result in results
        if not _failed(bed, result)
    ]


def _failed(bed: Bed, result: Measured) -> bool:
    if result.error:
        print(
            f"fidelity: {bed.name}, {result.model} {result.plan}: {result.error}", file=sys.stderr
        )
    return bool(result.error)


def _row(bed: Bed, place: Path, result: Measured, program: Program, profile: Profile) -> Row:
    file = place / result.model / f"{result.plan}.json"
    plan = autoddl.load(file)
    found = predict(program, plan.mesh, profile, layout_of(plan))
    return Row(
        bed.name,
        result.model,
        result.plan,
        file.with_suffix(".txt").read_text().strip(),
        found.cost.compute_s,
        found.cost.communication_s,
        found.uncertainty_s,
        found.step_s,
        result.step_s,
        result.communication_s,
    )


class _Count:
    """Tell how many plans are done, on one line."""

    def __init__(self, text: str, total: int) -> None:
        self.text, self.total, self.done = text, total, 0

    def __call__(self) -> None:
        self.done += 1
        print(f"fidelity: {self.text}: {self.done} of {self.total}", file=sys.stderr, flush=True)


def _report(rows: list[Row], folder: Path) -> None:
    report.write_csv(rows, folder / "fidelity.csv")
    report.draw(rows, folder / "fidelity.png")
    found = report.scores(rows)
    (folder / "fidelity.json").write_text(json.dumps([asdict(s) for s in found], indent=1) + "\n")
    table = Table()
    for heading in (
        "testbed",
        "plans",
        "Spearman",
        "mean error",
        "of communication",
        "worst",
        "bias",
        "within ±",
        "best plan off by",
    ):
        table.add_column(heading, justify="left" if heading == "testbed" else "right")
    for s in found:
        table.add_row(
            s.bed, str(s.plans), f"{s.spearman:.3f}", f"{s.mean_error:.1%}",
            f"{s.communication_error:.1%}", f"{s.worst_error:.0%}",
            f"{s.bias:+.1%}", f"{s.covered:.0%}", f"{s.regret:.1%}",
        )  # fmt: skip
    Console().print(table)
    print(f"wrote {folder}/fidelity.csv, fidelity.png, fidelity.json")


if __name__ == "__main__":
    sys.exit(main())
