"""Tables 6 to 11 of AMP, simulated: `python -m experiments.amp.tables`.

Each strategy is made a plan of ours (strategy_plans.py) and its step simulated: in strict 1F1B, which the
paper ran, and in OneFlow's schedule. Beside it stand the paper's seconds, the price of AMP's eq. 10, the
bytes of the fullest device, and the best plan of our planner for the same set-up. We simulate float32
where the paper ran float16, so ratios compare, not seconds.

Layers take what the profile says, or what AMP measured of each on a single device:

    by the profile  data sheets, with one factor by which a whole GPT takes as long as AMP's: the head and
                    its loss take as long as 3 blocks, a TransGAN takes 0.182 s a sample on a V100
    measured        the seconds of AMP's public code by layer: 0.8 blocks, 0.226 s

A rank correlation is Spearman's; pooled it is that of ratios to the fastest row of each set-up. The exit
code is 1 where it is under 0.7, or a speed-up of AMP's best row over Megatron's is off by over 25 %,
priced in 1F1B, by the profile and as measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import click
import numpy as np
import pandas as pd

from experiments.amp.printed import NOTES, TABLES
from experiments.amp.studies import STUDIES, Study, priced, priced_plan
from experiments.lib import cli, frames
from experiments.lib.frames import Row

POOLED_BAR, SPEED_UP_BAR = 0.7, 0.25
GIB = 1 << 30
JUDGED = ("1F1B s", "measured, 1F1B s")
PRICES = (JUDGED[0], "OneFlow s", "eq. 10 s", JUDGED[1], "measured, eq. 10 s")
COLUMNS: frames.Formats = {
    "set-up": "{}", "table": "{}", "mbs": "{:.0f}", "tmp": "{:.0f}", "stages": "{:.0f}", "dp": "{:.0f}",
    "cut": "{}", "paper s": "{:.2f}", **dict.fromkeys(PRICES, "{:.2f}"), "GiB": "{:.1f}", "fits": "{}",
}  # fmt: skip
FIGURES: frames.Formats = {
    "price": "{}", "set-up": "{}", "Megatron's rows": "{:.2f}", "AMP's rows": "{:.2f}",
    "both": "{:.2f}", "pairs alike": "{}", "across": "{}", "speed-up": "{:.2f}", "paper's": "{:.2f}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--set-ups", STUDIES)
@click.option("--budget", default=30.0, show_default=True, help="seconds for a plan of ours")
@cli.folder("out/amp")
def command(set_ups: Sequence[str], budget: float, folder: Path) -> int:
    """Print and write the tables."""
    chosen = [STUDIES[name] for name in set_ups]
    rows: list[Row] = []
    for study in chosen:
        rows += simulated(study, folder)
        rows.append(ours(study, folder, budget))
    frame = pd.DataFrame(rows)
    print(frames.text(frame, COLUMNS))
    for note in (NOTES[t] for study in chosen for t in study.tables if t in NOTES):
        print(note)
    ran = frame[frame["paper s"].notna()]
    found = figures(ran, chosen)
    together = {price: pooled(ran, price) for price in PRICES}
    print(frames.text(found, FIGURES))
    for price, value in together.items():
        print(f"pooled rank correlation, {price}: {value:.2f}")
    frames.save(frame, folder, "tables", pooled=together)
    frames.save(found, folder, "tables_figures")
    judged = found[found["price"].isin(JUDGED)]
    off = (judged["speed-up"] / judged["paper's"] - 1).abs().max()
    low = min(together[price] for price in JUDGED)
    return cli.MISSED if low < POOLED_BAR or off > SPEED_UP_BAR else 0


def simulated(study: Study, folder: Path) -> list[Row]:
    """Return the rows of a set-up's tables, each priced in all ways."""
    known, measured = study.plans(folder), study.plans(folder, measured=True)
    rows = []
    for table in study.tables:
        for printed in TABLES[table]:
            strategy, cut = printed.strategy, printed.cut
            seconds = priced(known.plan(strategy, cut))
            alike = priced(measured.plan(strategy, cut))
            rows.append({
                "set-up": study.name, "table": str(table), "mbs": printed.mbs, "tmp": printed.tmp,
                "stages": printed.stages, "dp": strategy.dp, "cut": shortened(cut),
                "paper s": printed.seconds, "1F1B s": seconds.strict_s,
                "OneFlow s": seconds.oneflow_s, "eq. 10 s": study.estimate().step_s(strategy, cut),
                JUDGED[1]: alike.strict_s,
                "measured, eq. 10 s": study.estimate(measured=True).step_s(strategy, cut),
                "GiB": seconds.memory_bytes / GIB, "fits": "yes" if seconds.fits else "no",
            })  # fmt: skip
    return rows


def ours(study: Study, folder: Path, budget_s: float) -> Row:
    """Return the row of our planner's best plan; its micro-batches stand in place of the cut."""
    plan = study.ours(folder, budget_s)
    seconds = priced_plan(plan)
    sizes = ", ".join(str(part.mesh) for part in plan.parts)
    return {
        "set-up": study.name, "table": "ours", "mbs": study.batch / plan.micro_batches,
        "stages": len(plan.parts), "cut": f"meshes {sizes}", "1F1B s": seconds.strict_s,
        "OneFlow s": seconds.oneflow_s, "GiB": seconds.memory_bytes / GIB,
        "fits": "yes" if seconds.fits else "no",
    }  # fmt: skip


def figures(ran: pd.DataFrame, chosen: Sequence[Study]) -> pd.DataFrame:
    """Return by price and set-up how far the order of the paper's seconds is kept."""
    rows = []
    for price in PRICES:
        for study in chosen:
            both = ran[ran["set-up"] == study.name]
            first, second = (both[both["table"] == str(table)] for table in study.tables)
            alike, pairs = same_order(both, price)
            within = [same_order(one, price) for one in (first, second)]
            across = alike - sum(a for a, _ in within), pairs - sum(p for _, p in within)
            rows.append({
                "price": price, "set-up": study.name, "Megatron's rows": correlation(first, price),
                "AMP's rows": correlation(second, price), "both": correlation(both, price),
                "pairs alike": f"{alike} of {pairs}", "across": f"{across[0]} of {across[1]}",
                "speed-up": first[price].min() / second[price].min(), "paper's": study.speed_up,
            })  # fmt: skip
    return pd.DataFrame(rows)


def same_order(rows: pd.DataFrame, price: str) -> tuple[int, int]:
    """Return of how many pairs of unlike seconds the price has the same order, and of how many."""
    pairs = list(combinations(zip(rows["paper s"], rows[price], strict=True), 2))
    signs = [(np.sign(a[0] - b[0]), np.sign(a[1] - b[1])) for a, b in pairs]
    unlike = [(paper, ours) for paper, ours in signs if paper]
    return sum(paper == ours for paper, ours in unlike), len(unlike)


def correlation(rows: pd.DataFrame, price: str) -> float:
    """Return Spearman's rank correlation of a price with the paper's seconds."""
    return float(rows["paper s"].corr(rows[price], method="spearman"))


def pooled(ran: pd.DataFrame, price: str) -> float:
    """Return that of the ratios to the fastest row of each set-up."""
    by = ran.groupby("set-up")[["paper s", price]]
    return correlation(ran[["paper s", price]] / by.transform("min"), price)


def shortened(cut: Sequence[int]) -> str:
    """Return the bounds of a cut in words; of more than nine the first and the last four."""
    words: Sequence[object] = cut if len(cut) <= 9 else (*cut[:4], "…", *cut[-4:])
    return f"[{','.join(map(str, words))}]"


if __name__ == "__main__":
    sys.exit(cli.run(command, "amp.tables"))
