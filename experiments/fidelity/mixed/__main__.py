"""Simulated against measured steps on unlike nodes: `python -m experiments.fidelity.mixed`.

Two testbeds have fast ranks and slow ones, by shares of cores and rates of links. On each our plan runs
beside the kind-blind one, cuts by rules and cuts at random; links and ops are calibrated there by kind.
Plans take turns in each pass; everything finished is kept in the folder, so that an interrupted run goes
on. The exit code is 1 where a bar is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.perfmodel import profile as profiles
from autoddl.plan import codec
from autoddl.sbp.mesh import Cluster
from experiments.fidelity import measure, scores
from experiments.fidelity.mixed.mixed_plans import Division, MixedPlans
from experiments.fidelity.workload import Bed
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured
from experiments.testbed import Testbed

OURS, BLIND = "ours", "kind-blind"
LAYERS, PARAMETERS = "as many layers", "as many parameters"
PASSES = 3  # apart in time, so that a slow phase of the machine does not hit all
RANDOM = 9  # with ours, the kind-blind one and two rules 13 plans
# Steps of a second: a share of a core comes in portions of 10 ms, of which rests of some are lost.
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 12, "width": 192, "heads": 6, "sequence": 64, "vocabulary": 512, "batch": 8,
    },
    # Half of the work is in the wide blocks, which have 94 % of the parameters.
    "transgan": {
        "depths": (6, 0, 6), "kept": 1, "width": 256, "heads": 4, "side": 4, "window": 8,
        "latent": 64, "batch": 16,
    },
}  # fmt: skip
# Fast ones are twice as fast, with links four times as fast; together 90 % of two cores.
BEDS = {
    bed.name: bed
    for bed in (
        Bed("4x1-mixed", 4, 1, "200mbit,200mbit,50mbit,50mbit", "0.6,0.6,0.3,0.3",
            ("fast", "fast", "slow", "slow")),
        Bed("2x2-mixed", 2, 2, "200mbit,50mbit", "0.6,0.3", ("fast", "slow")),
    )
}  # fmt: skip
DIVISIONS: dict[str, Sequence[Division]] = {
    "4x1-mixed": [((0,), (1,), (2,), (3,))],
    "2x2-mixed": [((0,), (1,), (2, 3)), ((0, 1), (2,), (3,))],
}
COLUMNS: frames.Formats = {
    "bed": "{}", "plan": "{}", "parts": "{}", "micro_batches": "{}", "predicted_s": "{:.3f}",
    "measured_s": "{:.3f}", "error": "{:+.1%}",
}  # fmt: skip
# Of shorter messages a good part passes in the burst of the token bucket, at no cost of its own.
SIZES = (
    "--quick", "--minbytes", "64K", "--maxbytes", "256K", "--stepfactor", "4", "--budget", "30",
)  # fmt: skip
# What has to be reached: of the errors and ranks on each bed, and our step beside others' there.
MEAN_ERROR, SPEARMAN = 0.15, 0.9
OVER_LAYERS, OVER_BLIND, OF_BEST = 1.25, 1.15, 1.03
OVER_PARAMETERS = {"transgan": 1.5}  # of models whose parameters are not where the work is


@dataclass(frozen=True)
class MixedBed:
    """A model on a testbed, and the folder with everything of it."""

    bed: Bed
    model: str
    root: Path

    @property
    def folder(self) -> Path:
        """Return where profile, plans and runs of the bed are."""
        return self.root / self.bed.name

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that the bed is."""
        kinds = " + ".join(f"1*{kind}x{self.bed.ranks}" for kind in self.bed.kinds)
        return Cluster.parse(kinds)

    @property
    def runs(self) -> RowStore:
        """Return the seconds of a step in each run of a plan."""
        return RowStore(self.folder / f"{self.model}.jsonl")

    def files(self) -> dict[str, Path]:
        """Return the plans' files by name; those that are missing are made."""
        folder = self.folder / self.model
        named = {path.stem: path for path in sorted(folder.glob("*.json"))}
        if len(named) < RANDOM + 4:
            folder.mkdir(parents=True, exist_ok=True)
            program = captured(
                self.root / f"{self.model}.json", self.model, "toy", **MODELS[self.model]
            )
            profile = profiles.load(self.folder / "network.json")
            plans = MixedPlans(program, self.cluster, profile)
            values = {OURS: plans.ours(), BLIND: plans.blind()}
            drawn = plans.at_random(DIVISIONS[self.bed.name], 0, RANDOM)
            values |= {cut.name: plans.plan(cut) for cut in (*plans.by_rules(), *drawn)}
            for name, value in values.items():
                Plan.of(value).save(folder / f"{name}.json")
        return {path.stem: path for path in sorted(folder.glob("*.json"))}

    def run(self, run_ranks: measure.Run, number: int) -> None:
        """Time each plan that has been timed less often than that."""
        for name, file in self.files().items():
            if len(self.runs.having(plan=name)) < number:
                said_s = codec.load(file, engines.model).estimate.step_s
                measured_s = measure.step_s(run_ranks, self.model, MODELS[self.model], file)
                self.runs.add({"plan": name, "step_s": measured_s})
                text = f"measured {measured_s:.3f} s, simulated {said_s:.3f} s"
                print(f"mixed: {self.bed.name}: {name}: {text}", file=sys.stderr, flush=True)

    def rows(self) -> Iterator[Row]:
        """Yield what was simulated and measured of each plan that has been run."""
        for name, file in self.files().items():
            timed = self.runs.having(plan=name)
            if timed:
                plan = codec.load(file, engines.model)
                cost = plan.estimate
                yield {
                    "bed": self.bed.name, "model": self.model, "plan": name, "name": name,
                    "parts": " ".join("".join(map(str, part.ranks)) for part in plan.parts),
                    "micro_batches": plan.micro_batches, "compute_s": cost.compute_s,
                    "communication_s": cost.communication_s, "uncertainty_s": cost.uncertainty_s,
                    "predicted_s": cost.step_s, "measured_s": min(row["step_s"] for row in timed),
                    "measured_communication_s": 0.0, "passes_s": [row["step_s"] for row in timed],
                }  # fmt: skip


@click.command(help=__doc__)
@click.option("--passes", default=PASSES, show_default=True, help="times each plan is run")
@click.option("--beds", default=",".join(BEDS), show_default=True, help="testbeds")
@click.option("--models", default=",".join(MODELS), show_default=True, help="models")
@click.option("--predict", is_flag=True, help="run nothing; report what the folder has")
@cli.folder("out/fidelity_mixed")
def command(passes: int, beds: str, models: str, predict: bool, folder: Path) -> int:
    """Calibrate and run what is missing; print, write and draw what was simulated and measured."""
    asked = [
        MixedBed(BEDS[bed], model, folder) for bed in beds.split(",") for model in models.split(",")
    ]
    for number in range(1, 1 if predict else passes + 1):
        for mixed in asked:
            with measure.running(mixed.bed) as (run_ranks, made):
                assert made is not None
                calibrate(mixed.bed, made, mixed.folder)
                mixed.run(run_ranks, number)
    found = pd.DataFrame([row for mixed in asked for row in mixed.rows()])
    return report(found, folder)


def calibrate(bed: Bed, made: Testbed, place: Path) -> None:
    """Measure links of each kind and of the pair, then the devices of each kind, into a profile.

    What an interrupted run has measured of links is there.
    """
    place.mkdir(parents=True, exist_ok=True)
    network, partial = place / "network.json", place / "partial.json"
    if network.exists():
        return
    nodes = {kind: [n for n, k in enumerate(bed.kinds) if k == kind] for kind in bed.kinds}
    groups: dict[tuple[str, ...], list[int]] = {(k,): mine for k, mine in nodes.items()}
    groups[tuple(sorted(nodes))] = [mine[0] for mine in nodes.values()]
    known = {link.kinds for link in profiles.load(partial).links} if partial.exists() else set()
    per = ["--nproc-per-node", str(bed.ranks)]
    for kinds, mine in groups.items():
        if kinds not in known:
            links = [
                "autoddl.fit_network",
                *per,
                "--kinds",
                ",".join(kinds),
                "--into",
                str(partial),
            ]
            measure.call([*links, *SIZES], mine, made)
    for kind, mine in nodes.items():
        device = ["autoddl.fit_device", *per, "--kind", kind, "--into", str(partial)]
        measure.call(device, mine[:1], made)
    partial.rename(network)


def report(frame: pd.DataFrame, folder: Path) -> int:
    """Print the plans and their scores; write and draw them; return the exit code."""
    found = scores.with_errors(frame)
    print(frames.text(found, COLUMNS))
    missed = False
    facts = {}
    for (bed, model), mine in found.groupby(["bed", "model"], sort=False):
        score = scores.score(mine) | scores.repeats(mine.passes_s.tolist())
        step = mine.set_index("plan").measured_s
        over = {name: step[name] / step[OURS] for name in (LAYERS, BLIND, PARAMETERS)}
        best = step[OURS] / step.min()
        facts[f"{bed} {model}"] = {**score, **over, "of best": best}
        print(
            f"{bed}, {model}: {score['plans']} plans: mean error {score['mean_error']:.1%}, worst "
            f"{score['worst_error']:.1%}, Spearman {score['spearman']:.3f}; ours is faster than "
            + ", ".join(f"{name} {ratio:.2f} ×" for name, ratio in over.items())
            + f"; {best:.3f} of the fastest{scores.repeated(score)}"
        )
        missed |= score["mean_error"] > MEAN_ERROR or score["spearman"] < SPEARMAN
        missed |= over[LAYERS] < OVER_LAYERS or over[BLIND] < OVER_BLIND or best > OF_BEST
        missed |= over[PARAMETERS] < OVER_PARAMETERS.get(str(model), 0.0)
    frames.save(found, folder, "mixed", scores=facts)
    scores.draw(frame, folder / "mixed")
    return cli.MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "fidelity.mixed"))
