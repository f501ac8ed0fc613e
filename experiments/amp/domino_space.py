"""AMP's annealing beside enumeration of its space: `python -m experiments.amp.domino_space`.

For each set-up all strategies on 4 × 4 devices are cut and priced; then annealing runs with ten seeds.
The table has the seconds of the enumeration, the best strategy, and after how many evaluations annealing
saw it (median and worst; "never" if it did not). The exit code is 1 where enumeration takes over 2 s.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import cache
from pathlib import Path

import click
import pandas as pd

from autoddl.search.rivals.amp.annealing import anneal
from autoddl.search.rivals.amp.estimate import AmpEstimate
from autoddl.search.rivals.amp.strategies import Strategy, strategies
from experiments.amp import setups
from experiments.lib import cli, frames
from experiments.lib.frames import Row

BAR_S = 2.0
COLUMNS: frames.Formats = {
    "set-up": "{}", "states": "{}", "enumerated s": "{:.2f}", "best s": "{:.3f}", "strategy": "{}",
    "median": "{}", "worst": "{}", "found": "{}",
}  # fmt: skip


@click.command(help=__doc__)
@click.option("--iterations", default=2000, show_default=True)
@click.option("--seeds", default=10, show_default=True)
@cli.folder("out/amp")
def command(iterations: int, seeds: int, folder: Path) -> int:
    """Print and write the table."""
    frame = pd.DataFrame([study(name, iterations, seeds) for name in setups.CLUSTERS])
    print(frames.text(frame, COLUMNS))
    frames.save(frame, folder, "domino_space")
    return cli.MISSED if frame["enumerated s"].max() > BAR_S else 0


def study(name: str, iterations: int, seeds: int) -> Row:
    """Return the row of a set-up."""
    layers, batch = setups.trained(name)
    estimate = AmpEstimate(setups.CLUSTERS[name], layers, batch)
    space = list(strategies(4, 4, batch))

    @cache
    def cost_s(strategy: Strategy) -> float:
        return estimate.step_s(strategy, estimate.cut(strategy))

    estimate.cut(space[0])  # compiles what is not yet
    begin = time.perf_counter()
    best = min(space, key=cost_s)
    took_s = time.perf_counter() - begin
    runs = [anneal(space, cost_s, iterations=iterations, seed=seed) for seed in range(seeds)]
    least_s = cost_s(best)
    after = sorted(r.found_after if r.cost_s == least_s else iterations + 2 for r in runs)
    found = [count for count in after if count <= iterations + 1]
    return {
        "set-up": name, "states": len(space), "enumerated s": took_s, "best s": least_s,
        "strategy": f"tmp {best.tmp}, dp {best.dp}, mbs {best.mbs}, {list(estimate.cut(best))}",
        "median": _told(statistics.median(after), iterations), "worst": _told(after[-1], iterations),
        "found": f"{len(found)} of {seeds}",
    }  # fmt: skip


def _told(count: float, iterations: int) -> str:
    return "never" if count > iterations + 1 else f"{count:g}"


if __name__ == "__main__":
    sys.exit(cli.run(command, "amp.domino_space"))
