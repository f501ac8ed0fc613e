"""How far wrong costs lead the search astray, table 5: `python -m experiments.hidup.noise`.

BERT-SGMoE between two machines at 30 Gbit/s is searched under wrong costs; what is found is judged under
the right ones, relative to what is found under these, as in the paper (`mean`), and to the best that any
of these searches found (`to_best`). Random noise multiplies what every op of the program takes by a
number of its own, uniform between 1 - x and 1 + x, so that no two layers are equal; "communication"
multiplies what all boxings over links take by the same number. Kept rows are used again. The exit code
is 1 where a bar of `mean` is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path

import click
import numpy as np
import pandas as pd
from msgspec import structs

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step_cost import Priced, StepPrices
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import assignments
from autoddl.search.network.cost_network import CostNetwork, Floats, Setting
from autoddl.search.reductions.prices import Prices
from autoddl.search.result import Assignment, SearchOptions
from autoddl.search.solvers.named import SOLVERS
from autoddl.search.step.overlap import StepSearch
from experiments.hidup.clusters import at_rate
from experiments.hidup.moe_models import GPUS, MAIN, MESH, PAPER, PROFILE
from experiments.hidup.moe_models import program as program_of
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.oneflow_problems import build

RATE = 30.0  # Gbit/s
RANDOM = "random"
KNOWN = 32  # assignments whose layouts and timelines are kept, as in planning
COLUMNS: frames.Formats = {
    "noise": "{}", "draws": "{:.0f}", "mean": "{:.2%}", "to_best": "{:.2%}", "least": "{:.2%}",
    "most": "{:.2%}", "paper": "{:.1%}", "bar": "{:.0%}", "met": "{}",
}  # fmt: skip


def slower(profile: Profile, factor: float) -> Profile:
    """Return the profile whose links take so many times as long, whatever the size."""
    links = []
    for link in profile.links:
        alpha_s, beta_s = link.alpha_s * factor, link.beta_s_per_byte * factor
        links.append(structs.replace(link, alpha_s=alpha_s, beta_s_per_byte=beta_s))
    return structs.replace(profile, links=tuple(links))


@dataclass(frozen=True, eq=False)
class NoisySetting(Setting):
    """A setting in which the ops of the program take so many times as long."""

    factors: Floats

    @cached_property
    def prices(self) -> StepPrices:
        """Return the prices of single ops and boxings."""
        return NoisyPrices(self)


class NoisyPrices(StepPrices):
    """Prices in which each op has a factor of its own."""

    def __init__(self, setting: NoisySetting) -> None:
        super().__init__(setting.program, setting.mesh, setting.profile)
        self.factors = setting.factors.tolist()

    def ops(self, layout: Layout) -> Priced:
        """Return the price of every op under a layout, in the order of the program."""
        rows = zip(super().ops(layout).rows(), self.factors, strict=True)
        found = [price._replace(seconds=price.seconds * factor) for price, factor in rows]
        return Priced(found, np.arange(len(found)))


def noisy(network: CostNetwork, factors: Floats) -> CostNetwork:
    """Return the network in which ops take so many times as long; a parameter's op is its update."""
    op = network.timed_ops
    device = np.where(op >= 0, factors[op], 1.0)
    known = network.setting
    setting = NoisySetting(
        **{f.name: getattr(known, f.name) for f in fields(known)}, factors=factors
    )
    return replace(Prices(device=device).apply(network), setting=setting)


def searched(network: CostNetwork, budget: float) -> Assignment:
    """Return the assignment of the shortest step that is found."""
    judge = lru_cache(maxsize=KNOWN)(partial(Assigned, network))
    starts = dict.fromkeys(assignments(network).values())
    options = SearchOptions(budget=budget, starts=starts)
    return StepSearch(network, SOLVERS["exact"], judge).search(options).assignment


@click.command(help=__doc__)
@click.option("--draws", type=click.IntRange(1), default=10, show_default=True)
@click.option("--budget", default=20.0, show_default=True, help="seconds for each search")
@cli.folder("out/hidup/noise")
def command(draws: int, budget: float, folder: Path) -> int:
    """Search what is missing, print the table and write it."""
    program = program_of(MAIN, folder.parent / "programs", GPUS)
    profile = at_rate(profiles.load(PROFILE), RATE)
    mesh, rows = Mesh.parse(MESH, profile.levels), RowStore(folder / "rows.jsonl")
    right = build(program, mesh, profile)

    def wrong(kind: str, size: float, draw: int) -> CostNetwork:
        if kind != RANDOM:
            return build(program, mesh, slower(profile, 1 + size))
        rng = np.random.default_rng([draw, round(1e6 * size)])
        return noisy(right, 1 + size * rng.uniform(-1, 1, len(program.ops)))

    def judged(make: Callable[[], CostNetwork]) -> Row:
        return {"step_s": Assigned(right, searched(make(), budget)).step_s}

    best = rows.once({"noise": "", "draw": 0, "budget_s": budget}, partial(judged, lambda: right))
    print(f"under the right costs: {best['step_s']:.4f} s", flush=True)
    found = []
    for told in PAPER["table5"]:
        kind, size, ratios = told["kind"], told["size"], []
        name = f"{size:.0%} {kind}" if kind == RANDOM else f"{size:+.0%} {kind}"
        for draw in range(draws if kind == RANDOM else 1):
            key = {"noise": name, "draw": draw, "budget_s": budget}
            made = partial(judged, partial(wrong, kind, size, draw))
            ratios.append(rows.once(key, made)["step_s"] / best["step_s"])
            print(f"{name}, draw {draw + 1}: {ratios[-1]:.2%}", flush=True)
        found.append({"noise": name, **summary(ratios, told["printed"], told.get("most"))})
    frame = pd.DataFrame(found)
    frame["to_best"] = frame["mean"] / min(1.0, frame.least.min())
    print(frames.text(frame, COLUMNS))
    frames.save(frame, folder, "table5", rate=RATE, best_s=best["step_s"], rows_of=rows.rows)
    return cli.MISSED if "MISSED" in set(frame.met) else 0


def summary(ratios: Sequence[float], paper: float, bar: float | None) -> Row:
    """Return the row of the table: ratios beside the paper's mean, and whether a bar is met."""
    mean = float(np.mean(ratios))
    met = "" if bar is None else "met" if mean <= bar else "MISSED"
    return {
        "draws": len(ratios), "mean": mean, "least": min(ratios), "most": max(ratios),
        "paper": paper, "bar": bar, "met": met,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(cli.run(command, "hidup.noise"))
