"""Predict plans that no calibration has seen, run them, compare: `python -m experiments.fidelity`.

A testbed is calibrated with fit-device and fit-network; then the plans of a study (studies.py) train on
it, each in processes of its own, once in every pass. The lower quartile of a run's steps counts, and of
all passes the quickest, since other processes only ever add time. Everything finished is kept in the
folder, so that an interrupted run goes on. Without root only plain loopback can be used (`--beds
loopback-4`). The exit code is 1 where a bar of a study is missed.

`FOLDER/BED/` has the testbed's profile and by study and model a folder of plans, with their names in
plans.json, and a file of runs: a line for each with the seconds of a step, and how many signatures the
engine changed; or an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pandas as pd

from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.perfmodel import profile as profiles
from autoddl.plan import codec
from experiments.fidelity import measure, scores
from experiments.fidelity.studies import STUDIES, FidelityStudy
from experiments.fidelity.workload import Bed
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

STEPS = "experiments.fidelity.step_ranks"
RUN_LIMIT_S, STEPS_LIMIT = 240.0, 20  # of a run: so much, and so many of its predicted steps
BEDS = dict.fromkeys(bed.name for study in STUDIES.values() for bed in study.beds)
MODELS = dict.fromkeys(model for study in STUDIES.values() for model in study.models)
PLANS: frames.Formats = {
    "bed": "{}", "model": "{}", "plan": "{}", "predicted_s": "{:.4f}", "measured_s": "{:.4f}",
    "error": "{:+.1%}", "over": "{}", "predicted_times": "{:.3f}", "measured_times": "{:.3f}",
    "bar": "{:g}",
}  # fmt: skip
COLUMNS: frames.Formats = {
    "study": "{}", "group": "{}", "plans": "{}", "spearman": "{:.3f}", "mean_error": "{:.1%}",
    "scaled_error": "{:.1%}", "worst_error": "{:.0%}", "bias": "{:+.1%}", "regret": "{:.1%}",
    "repeat_spearman": "{:.3f}", "repeat_error": "{:.1%}", "missed": "{}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--studies", STUDIES, ("plans",))
@cli.listed("--beds", BEDS)
@cli.listed("--models", MODELS)
@click.option("--passes", type=click.IntRange(1), help="runs of each plan; 2 or 3 by the study")
@click.option("--quick", is_flag=True, help="calibrated quickly, one pass")
@click.option("--predict", "only_predict", is_flag=True, help="run nothing; report what there is")
@cli.devices()
@cli.folder("out/fidelity")
def command(
    studies: Sequence[str], beds: Sequence[str], models: Sequence[str], passes: int | None,
    quick: bool, only_predict: bool, devices: Path | None, folder: Path,
) -> int:  # fmt: skip
    """Calibrate, run and predict all plans; print the scores, write and draw them."""
    found, scored, met = list[Row](), list[Row](), True
    for name in studies:
        study, mine = STUDIES[name], list[Row]()
        for bed in (bed for bed in study.beds if bed.name in beds):
            # Plans that are good by another profile are others.
            place = folder / f"{bed.name}{'-quick' * quick}"
            wanted = [model for model in study.models if model in models]
            trials = [PlanRuns(name, bed, model, folder, place) for model in wanted]
            if not only_predict:
                device = None if bed.kinds else measure.device(bed, devices or folder, quick=quick)
                with measure.running(bed) as (run, made):
                    measure.calibrate(bed, made, place, study.links, device, quick=quick)
                    for number in range(1, (passes or (1 if quick else study.passes)) + 1):
                        for trial in trials:
                            trial.run(run, number, measure.network_file(place, quick))
            mine += [row for trial in trials for row in trial.rows()]
        if mine:
            told, good = report(study, mine)
            found, scored, met = [*found, *mine], [*scored, *told], met and good
    if found:
        frame, table = pd.DataFrame(found), pd.DataFrame(scored)
        for name in ("repeat_spearman", "repeat_error"):  # of a single pass there are none
            table[name] = table.get(name, pd.Series(dtype=float))
        print(frames.text(table, COLUMNS))
        frames.save(frame, folder, "fidelity", [("", table, COLUMNS)], scores=scored)
        scores.draw(frame, folder / "fidelity")
    return 0 if met else cli.MISSED


@dataclass(frozen=True)
class PlanRuns:
    """The plans of a study for a model on a testbed, in its folder `place`, and their runs."""

    name: str
    bed: Bed
    model: str
    folder: Path
    place: Path

    @property
    def study(self) -> FidelityStudy:
        """Return the study."""
        return STUDIES[self.name]

    @property
    def plans(self) -> Path:
        """Return the folder of the plans."""
        return self.place / f"{self.name}-{self.model}"

    @property
    def kept(self) -> RowStore:
        """Return the runs."""
        return RowStore(self.plans.with_suffix(".jsonl"))

    def files(self) -> dict[Path, Row]:
        """Return the files of the plans, with the name of each and of that which it is compared with."""
        index = self.plans / "plans.json"
        told = json.loads(index.read_text()) if index.exists() else []
        return {self.plans / f"{number:02d}.json": one for number, one in enumerate(told)}

    def make(self, profile: Path) -> None:
        """Make the plans under the testbed's profile, if they are not there yet."""
        if self.files():
            return
        self.plans.mkdir(parents=True, exist_ok=True)
        sizes = self.study.models[self.model]
        file = self.folder / "programs" / f"{self.name}-{self.model}.json"
        program, told = captured(file, self.model, "toy", **sizes), []
        for number, one in enumerate(self.study.make(program, self.bed, profiles.load(profile))):
            Plan.of(one.plan).save(self.plans / f"{number:02d}.json")
            told.append({"plan": one.name, "over": one.over})
        (self.plans / "plans.json").write_text(json.dumps(told, indent=1))

    def run(self, ranks: measure.Run, number: int, profile: Path) -> None:
        """Run each plan that has been run less often than that."""
        self.make(profile)
        words = [self.model, json.dumps(dict(self.study.models[self.model])), str(self.kept.file)]
        # Each runs in processes of its own: OneFlow never frees a graph's buffers.
        for file in self.files():
            if len(self.kept.having(plan=file.stem)) >= number:
                continue
            limit_s = RUN_LIMIT_S + STEPS_LIMIT * codec.load(file, engines.model).estimate.step_s
            error = ranks(STEPS, [*words, str(file)], limit_s)
            if error and len(self.kept.having(plan=file.stem)) < number:
                self.kept.add({"plan": file.stem, "error": error})
            text = error or "{step_s:.4f} s".format(**self.kept.rows[-1])
            print(f"{self.place.name}, {self.plans.name} {file.stem}: {text}", file=sys.stderr)

    def rows(self) -> Iterator[Row]:
        """Yield what was predicted and measured of each plan that has been run; the quickest counts."""
        for file, told in self.files().items():
            runs = self.kept.having(plan=file.stem)
            good = [row for row in runs if not row.get("error")]
            if runs and not good:
                what = f"{self.bed.name}, {self.model}, {told['plan']}"
                print(f"fidelity: {what}: {runs[0]['error']}", file=sys.stderr)
            if good:
                yield {
                    "study": self.name, "bed": self.bed.name, "model": self.model, **told,
                    "predicted_s": codec.load(file, engines.model).estimate.step_s,
                    "measured_s": min(row["step_s"] for row in good),
                    "passes_s": [row["step_s"] for row in good],
                }  # fmt: skip


def report(study: FidelityStudy, rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """Print a study's plans beside those that they are compared with; return scores, and if bars are met.

    `predicted_times` and `measured_times` are how many times as long as these they take.
    """
    known = {(row["bed"], row["model"], row["plan"]): row for row in rows}
    frame = pd.DataFrame(rows)
    for what in ("predicted", "measured"):
        least_s = [
            known.get((row["bed"], row["model"], row["over"]), {}).get(f"{what}_s") for row in rows
        ]
        frame[f"{what}_times"] = frame[f"{what}_s"] / pd.Series(least_s, dtype=float)
    frame["bar"] = [study.longer.get((row["model"], row["plan"])) for row in rows]
    frame["bar"] = frame.bar.astype(float)
    print(frames.text(frame.assign(error=frame.predicted_s / frame.measured_s - 1), PLANS))
    found = []
    for key, mine in frame.groupby(list(study.by), sort=False):
        score = scores.score(mine) | scores.repeats(mine.passes_s.tolist())
        missed = [key for key, bar in study.most.items() if score[key] > bar]
        missed += [key for key, bar in study.least.items() if score[key] < bar]
        group = {"study": frame.study.iloc[0], "group": ", ".join(map(str, key))}
        found.append({**group, **score, "missed": ", ".join(missed)})
    slow = bool((frame.measured_times < frame.bar).any())
    return found, not slow and not any(row["missed"] for row in found)


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity"))
