"""Run the plans of models on a testbed by turns; all that is done is kept in its folder.

    network.json   the profile; rates.jsonl the products per second of nodes, each time that something ran
    MODEL/         plans.json: names, what was predicted; plans and scripts; turns.jsonl: seconds of steps

An interrupted run goes on: with the plans that are missing, the launches of ranks that are not finished.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoddl.api import Plan
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from experiments.demo.demo_ranks import CONSOLE, counted, stage
from experiments.fidelity import measure
from experiments.hap.measured import node_rates
from experiments.hap.measured.bed_profile import calibrated
from experiments.hap.measured.contest_plans import SCRIPTS, VIRTUAL, ContestPlans
from experiments.hap.measured.share_study import ShareBed, ShareStudy
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured
from experiments.testbed import Testbed

RANKS = "experiments.figures.clock.clock_ranks"
BED, UNITS = "ranks of the testbed", VIRTUAL
RATES = "rates.jsonl"
START_S, SLOWEST = 400.0, 4.0  # a limit: for starting and building, and steps so many times as long
ATTEMPTS = 2  # OneFlow's graphs rarely crash where ranks share cores


@dataclass(frozen=True)
class ModelRuns:
    """The plans of a model on a bed, and their turns, in a folder."""

    study: ShareStudy
    bed: ShareBed
    model: str
    place: Path

    @property
    def name(self) -> str:
        """Return of what the runs are."""
        return f"{self.bed.name}, {self.model}"

    @property
    def kept(self) -> RowStore:
        """Return the turns of plans, a row for each plan and pass."""
        return RowStore(self.place / "turns.jsonl")

    @property
    def faster(self) -> float:
        """Return how many times as many products the fast node makes, as it was measured last."""
        fast, slow = RowStore(self.place.parent / RATES).rows[-1]["rates"]
        return float(fast / slow)

    @property
    def plans(self) -> list[Row]:
        """Return what is known of each plan; none where they are not all made."""
        index = self.place / "plans.json"
        return json.loads(index.read_text()) if index.exists() else []

    @property
    def missing(self) -> bool:
        """Tell whether something is not made or not run."""
        return not self.plans or any(self.launches())

    def launches(self) -> Iterator[tuple[Row, list[Row]]]:
        """Yield the key of each launch that is not finished, and the plans that take turns in it."""
        run = [row for row in self.plans if row["plan"] == row["runs"]]
        for number in range(1, self.study.passes + 1):
            for group in (BED, UNITS):
                mine = [row for row in run if (row["plan"] == VIRTUAL) == (group == UNITS)]
                key = {"pass": number, "group": group, "rounds": self.study.rounds}
                done = {row["plan"] for row in self.kept.having(**key)}
                if not done.issuperset(row["plan"] for row in mine):
                    yield key, mine

    def plan(self, profile: Profile, programs: Path) -> None:
        """Make the plans and their scripts, if they are not there yet."""
        if self.plans:
            return
        self.place.mkdir(parents=True, exist_ok=True)
        file = programs / f"{self.model}.json"
        with counted(f"{self.name}: capture and plan"):
            program = captured(file, self.model, "toy", **self.study.models[self.model])
            contest = ContestPlans(program, self.bed, profile, self.study.budget_s)
            rows = []
            for name, plan, runs in contest.made():
                rows.append({
                    "plan": name, "runs": runs, **self._written(name, plan),
                    "predicted_s": plan.estimate.step_s, "mesh": str(plan.parts[0].mesh),
                    "stages": len(plan.parts), "ideal_s": contest.ideal_s, "slower": contest.slower,
                })  # fmt: skip
        (self.place / "plans.json").write_text(json.dumps(rows, indent=1))

    def _written(self, name: str, plan: Plan) -> Row:
        """Write a plan, and its script if it runs as one; return what ranks need of it."""
        stem = name.replace(" ", "_").replace("/", "_")
        plan.save(self.place / f"{stem}.json")
        if plan.engine.name != SCRIPTS:
            return {"file": f"{stem}.json"}
        plan.codegen(self.place / f"{stem}.py")
        return {"script": f"{stem}.py", "learning_rate": plan.program.groups[0].learning_rate}

    def _started(self, row: Row) -> Row:
        """Return what ranks are told of a plan."""
        files = ("file", "script")
        told: Row = {name: str(self.place / row[name]) for name in files if name in row}
        return told | {name: row[name] for name in ("plan", "learning_rate") if name in row}

    def run(self, made: Testbed, virtual: Testbed) -> None:
        """Run what is missing.

        Raises:
            AutoDDLError: ranks fail.
        """
        for key, rows in self.launches():
            job = {
                "model": self.model, "sizes": dict(self.study.models[self.model]),
                "plans": [self._started(row) for row in rows], "rounds": self.study.rounds, "key": key,
                "result": str(self.kept.file), "running": str(self.place / "running"),
            }  # fmt: skip
            rounds_s = self.study.rounds * sum(row["predicted_s"] for row in rows)
            run = measure.run_on(virtual if key["group"] == UNITS else made)
            names = f"{len(rows)} plans" if len(rows) > 1 else rows[0]["plan"]
            with counted(f"{self.name}, pass {key['pass']}: {self.study.rounds} turns of {names}"):
                for _ in range(ATTEMPTS):
                    error = run(RANKS, [json.dumps(job)], START_S + SLOWEST * rounds_s)
                    if not error:
                        break
                else:
                    raise AutoDDLError(f"{self.name}: {error}")


def carry_out(study: ShareStudy, folder: Path, tolerance: float) -> list[ModelRuns]:
    """Measure what is missing of a study in a folder; return its runs.

    Raises:
        AutoDDLError: there can be no testbed, ranks fail, or nodes' rates are not those of their quotas.
    """
    found = []
    for bed in study.beds:
        place = folder / bed.name
        models = [ModelRuns(study, bed, model, place / model) for model in study.models]
        found += models
        if not any(runs.missing for runs in models):
            continue
        place.mkdir(parents=True, exist_ok=True)
        with measure.running(bed.bed) as (_, made), Testbed(**bed.virtual) as virtual:
            assert made is not None
            with stage(f"{bed.name}: matrix products per second of each node"):
                rates = node_rates.measured(made)
                CONSOLE.print(f"  {', '.join(f'{rate:.0f}' for rate in rates)}", markup=False)
            RowStore(place / RATES).add({"rates": rates})
            node_rates.check(bed.name, bed.quotas, rates, tolerance)
            with counted(f"{bed.name}: calibrate"):
                profile = calibrated(bed.bed, made, place, study.links, study.quick)
            for runs in models:
                runs.plan(profile, folder / ("programs-quick" if study.quick else "programs"))
                runs.run(made, virtual)
    return found
