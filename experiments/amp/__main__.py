"""AMP's tables 6 to 11 beside the paper: `python -m experiments.amp`.

The strategies that the paper prints are plans of ours, simulated in strict 1F1B, which the paper ran, and
in OneFlow's schedule; beside them the paper's seconds, what AMP's search finds here (of the five that its
price predicts best, the fastest that fits), and our planner's best.

Layers take what the profile says (data sheets, with one factor by which a whole GPT takes as long as
AMP's), or, as "measured", what the public code has of each. We simulate float32 where the paper ran
float16, so ratios compare, not seconds. A rank correlation is Spearman's; pooled it is that of ratios to
the fastest row of each set-up.

The exit code is 1 where a bar is missed: pooled rank correlations of 1F1B of 0.7, speed-ups of AMP's
best row over Megatron's within 25 %.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import click
import numpy as np
import pandas as pd

from autoddl.search.rivals.amp.strategies import Strategy
from experiments.amp.amp_studies import PAPER, TABLES, AmpStudy, Seconds, priced, priced_plan
from experiments.lib import cli, frames
from experiments.lib.frames import Row

POOLED_BAR, SPEED_UP_BAR = 0.7, 0.25
AMPS_BUDGET = 5  # strategies that AMP runs of those that it predicts; its tables have so many
GIB = 1 << 30
JUDGED = ("1F1B s", "measured, 1F1B s")
PRICES = (JUDGED[0], "OneFlow s", JUDGED[1])


def _columns(texts: str, *numbers: str) -> frames.Formats:
    """Return the formats of columns: texts and whole numbers by commas, and those of two digits."""
    named = dict.fromkeys(texts.split(","), lambda v: v if isinstance(v, str) else f"{v:g}")
    return {**named, **dict.fromkeys(numbers, "{:.2f}")}


COLUMNS = {
    "tables": _columns(
        "set-up,table,mbs,tmp,stages,dp,cut,fits", "paper s", *PRICES, "GiB"
    ),
    "figures": _columns(
        "price,set-up,pairs alike,across", "Megatron's rows", "AMP's rows", "both", "speed-up", "paper's"
    ),
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--set-ups", PAPER["set-ups"])
@click.option("--budget", default=30.0, show_default=True, help="seconds for a plan of ours")
@cli.folder("out/amp")
def command(set_ups: Sequence[str], budget: float, folder: Path) -> int:
    """Price the printed strategies, and our plan, and say whether their order is that of the paper."""
    studies = [AmpStudy(name, folder) for name in set_ups]
    frame = _told(
        [
            row
            for study in studies
            for row in (*printed(study), searched(study), ours(study, budget))
        ],
        folder,
        "tables",
    )
    print(PAPER["note"])
    ran = frame[frame["paper s"].notna()]
    found = _told(figures(ran, studies), folder, "figures")
    together = {price: pooled(ran, price) for price in PRICES}
    for price, value in together.items():
        print(f"pooled rank correlation, {price}: {value:.2f}")
    judged = found[found["price"].isin(JUDGED)]
    off = (judged["speed-up"] / judged["paper's"] - 1).abs().max()
    met = min(together[price] for price in JUDGED) >= POOLED_BAR and off <= SPEED_UP_BAR
    return 0 if met else cli.MISSED


def _told(rows: Sequence[Row], folder: Path, name: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    print(f"\n{name}\n{frames.text(frame, COLUMNS[name])}")
    frames.save(frame, folder, name)
    return frame


def printed(study: AmpStudy) -> Iterator[Row]:
    """Yield the rows of a set-up's tables, each priced in all ways."""
    known, measured = study.plans(), study.plans(measured=True)
    for table in study.told["tables"]:
        for row in TABLES[table]:
            strategy, cut = row.strategy, row.cut
            seconds, alike = (priced(plans.plan(strategy, cut)) for plans in (known, measured))
            yield {
                **_row(study, table, seconds), **_named(strategy, cut), "paper s": row.seconds,
                JUDGED[1]: alike.strict_s,
            }  # fmt: skip


def searched(study: AmpStudy) -> Row:
    """Return the row of what AMP's own search finds."""
    plans = study.plans()
    ran = [
        (priced(plans.plan(found.strategy, found.bounds)), found)
        for found in study.estimate().search(AMPS_BUDGET)
    ]
    seconds, best = min(ran, key=lambda one: (not one[0].fits, one[0].strict_s))
    return {**_row(study, "AMP's search", seconds), **_named(best.strategy, best.bounds)}


def ours(study: AmpStudy, budget_s: float) -> Row:
    """Return the row of our planner's best plan; its meshes stand in place of the cut."""
    plan = study.ours(budget_s)
    sizes = ", ".join(str(part.mesh) for part in plan.parts)
    named = {"mbs": study.batch / plan.micro_batches, "stages": len(plan.parts)}
    return {**_row(study, "ours", priced_plan(plan)), **named, "cut": f"meshes {sizes}"}


def _named(strategy: Strategy, cut: Sequence[int]) -> Row:
    return {
        "mbs": strategy.mbs, "tmp": strategy.tmp, "stages": len(strategy.stages),
        "dp": strategy.dp, "cut": shortened(cut),
    }  # fmt: skip


def _row(study: AmpStudy, table: str, seconds: Seconds) -> Row:
    return {
        "set-up": study.name, "table": table, JUDGED[0]: seconds.strict_s,
        "OneFlow s": seconds.oneflow_s, "GiB": seconds.memory_bytes / GIB,
        "fits": "yes" if seconds.fits else "no",
    }  # fmt: skip


def figures(ran: pd.DataFrame, studies: Sequence[AmpStudy]) -> list[Row]:
    """Return by price and set-up how far the order of the paper's seconds is kept."""
    rows = []
    for price in PRICES:
        for study in studies:
            both = ran[ran["set-up"] == study.name]
            first, second = (both[both["table"] == table] for table in study.told["tables"])
            alike, pairs = same_order(both, price)
            within = [same_order(one, price) for one in (first, second)]
            across = alike - sum(a for a, _ in within), pairs - sum(p for _, p in within)
            rows.append({
                "price": price, "set-up": study.name, "Megatron's rows": correlation(first, price),
                "AMP's rows": correlation(second, price), "both": correlation(both, price),
                "pairs alike": f"{alike} of {pairs}", "across": f"{across[0]} of {across[1]}",
                "speed-up": first[price].min() / second[price].min(),
                "paper's": study.told["speed_up"],
            })  # fmt: skip
    return rows


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
    sys.exit(cli.run(command, "amp"))
