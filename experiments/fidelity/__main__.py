"""Predict plans that no calibration has seen, run them, compare: `python -m experiments.fidelity`.

A testbed is calibrated with fit-device and fit-network, then random and baseline plans of GPT, VGG13
and a mixture of experts train on it. Everything finished is kept in the folder, so that an
interrupted run goes on. Without root only plain loopback can be used (`--beds loopback-4`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pandas as pd

import autoddl
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.timeline import predict
from autoddl.sbp.program import Program
from experiments.fidelity import measure, scores, workload
from experiments.fidelity.workload import Bed
from experiments.lib import cli, frames
from experiments.lib.frames import Row
from experiments.lib.programs import captured

SIZES = ("--minbytes", "1K", "--maxbytes", "4M")  # of messages: those of the models
SHAPED = ("2x2-500mbit", "4x1-200mbit", "2x4-200mbit")
COLUMNS: frames.Formats = {
    "bed": "{}", "plans": "{}", "spearman": "{:.3f}", "mean_error": "{:.1%}", "scaled_error": "{:.1%}",
    "communication_error": "{:.1%}", "worst_error": "{:.0%}", "bias": "{:+.1%}", "covered": "{:.0%}",
    "regret": "{:.1%}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--beds", workload.BEDS, (*SHAPED, "loopback-4"))
@cli.listed("--models", workload.MODELS)
@click.option("--plans", default=12, show_default=True, help="of each model on each testbed")
@click.option("--quick", is_flag=True, help="calibrated quickly, one pass")
@click.option("--profile", help="predict with this profile instead of the testbed's own")
@click.option("--predict", "only_predict", is_flag=True, help="run nothing; report what there is")
@cli.devices()
@cli.folder("out/fidelity")
def command(
    beds: Sequence[str], models: Sequence[str], plans: int, quick: bool, profile: str | None,
    only_predict: bool, devices: Path | None, folder: Path,
) -> None:  # fmt: skip
    """Calibrate, run and predict all plans of all testbeds; print the scores, write and draw them."""
    files = {model: folder / f"{model}.json" for model in models}
    programs = {m: captured(f, m, "toy", **workload.MODELS[m]) for m, f in files.items()}
    found: list[Row] = []
    for bed in (workload.BEDS[name] for name in beds):
        if not only_predict:
            _run(bed, folder, devices or folder, programs, files, plans, quick)
        place = _place(folder, bed, quick)
        known = profiles.load(profile or measure.network_file(place, quick))
        for model, program in programs.items():
            found += rows(bed, place, model, program, known)
    if not found:
        return
    frame = pd.DataFrame(found)
    scored = [{"bed": bed, **scores.score(mine)} for bed, mine in frame.groupby("bed", sort=False)]
    print(frames.text(pd.DataFrame(scored), COLUMNS))
    frames.save(scores.with_errors(frame), folder, "fidelity", scores=scored)
    scores.draw(frame, folder / "fidelity")


def _place(folder: Path, bed: Bed, quick: bool) -> Path:
    """Return the folder of a testbed: good plans by another profile are other ones."""
    return folder / f"{bed.name}{'-quick' * quick}"


def _run(
    bed: Bed, folder: Path, devices: Path, programs: dict[str, Program], files: dict[str, Path],
    plans: int, quick: bool,
) -> None:  # fmt: skip
    """Calibrate a testbed and time what is missing of its plans."""
    place = _place(folder, bed, quick)
    device = devices / measure.device_file(bed.nodes * bed.ranks, quick)
    with measure.running(bed) as (run, made):
        profile = measure.calibrate(bed, made, place, SIZES, quick=quick, device=device)
        passes = 1 if quick else measure.PASSES
        for model, program in programs.items():
            made_plans = measure.prepare(place, bed, program, model, plans, profile)
            total = passes * len(made_plans)
            steps = measure.measure(run, place, model, files[model], made_plans, passes)
            for done, _ in enumerate(steps, 1):
                print(f"fidelity: {bed.name}: {model}: {done} of {total}", file=sys.stderr)


def rows(bed: Bed, place: Path, model: str, program: Program, profile: Profile) -> list[Row]:
    """Return what was predicted and measured of a model's plans on a testbed."""
    found = []
    for result in measure.known(place, model):
        if result["error"]:
            what = f"{bed.name}, {model} {result['plan']}"
            print(f"fidelity: {what}: {result['error']}", file=sys.stderr)
            continue
        file = place / model / f"{result['plan']}.json"
        plan = autoddl.load(file)
        said = predict(plan.mesh, profile, plan.layout)
        found.append({
            "bed": bed.name, "model": model, "plan": result["plan"],
            "name": file.with_suffix(".txt").read_text().strip(),
            "compute_s": said.cost.compute_s, "communication_s": said.cost.communication_s,
            "uncertainty_s": said.uncertainty_s, "predicted_s": said.step_s,
            "measured_s": result["step_s"], "measured_communication_s": result["communication_s"],
        })  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity"))
