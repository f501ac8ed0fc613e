"""HAP's studies (seed 001), by the model: `python -m experiments.hap`.

    table      GPT and VGG13 on a fast and a slow device: even, in parts, over shares, and all compute by
               speed, without communication ("ideal")
    ablation   HAP's figure 15: data parallelism on even cuts (DP-EV), what the search finds there (+Q),
               over shares (+B), and what grouped gathers save of that (+C), on two nodes of each kind at
               10 and 100 Gbit/s; nothing overlaps, as in the paper
    toys       50 small random programs and clusters: the planner's race over shares, and HAP's
               alternation, beside the best of all shares of up to 8 units
    synthesis  the same programs by HAP's A*: states looked at by each heuristic, and what sending each
               tensor once loses
    gathers    padded and grouped gathers between four nodes over shaped links, as root: which are faster
               by the clock, and which the fitted links choose

Everything but the last, which is left out by default, is predicted. Kept rows are used again. The exit
code is 1 where a plan over shares is slower than an even one, the race misses the best shares of a toy,
or fewer than eight of ten gathers are chosen the faster way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.search.rivals.hap import synthesis
from experiments.hap import shaped_gathers, unlike_steps
from experiments.hap.share_toys import MOST_UNITS, toy
from experiments.hidup import moe_models
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore

TOYS = 50
EQUAL = 1 + 1e-9  # relative; sums in another order
SLOWER = (2.0, 4.0)
GBITS = (10.0, 100.0)
GATHERS = "gathers"
RIGHT = 0.8  # of gathers have to go the faster way


def _ms(value: float) -> str:
    return f"{1e3 * value:.0f}"


COLUMNS: dict[str, frames.Formats] = {
    "table": {
        "model": "{}", "slower": "{:g}", "even_s": _ms, "parts_s": _ms, "stages": "{}", "shares_s": _ms,
        "mesh": "{}", "ideal_s": _ms,
    },
    "ablation": {
        "model": "{}", "pair": "{}", "gbit": "{:g}", "data_s": _ms, "even_s": _ms, "shares_s": _ms,
        "mesh": "{}", "saved_s": "{:.4f}", "gap": "{:.1%}", "q": "{:.2f}", "b": "{:.2f}",
    },
    "toys": {
        "toys": "{}", "race finds it": "{}", "shares win": "{}", "hap finds it": "{}",
        "hap loses at most": "{:.1%}", "on average": "{:.2%}",
    },
    "synthesis": {
        "toys": "{}", "states, none": "{}", "states, compute": "{}", "states, dual": "{}",
        "sent once loses on": "{}", "at most": "{:.1%}",
    },
    GATHERS: {
        "shares": "{}", "kib": "{}", "largest": "{:.2f}", "padded_s": _ms, "grouped_s": _ms,
        "padded_told_s": _ms, "grouped_told_s": _ms, "chosen": "{}", "faster": "{}",
    },
}  # fmt: skip


def _cases(study: str, models: Sequence[str]) -> Iterator[tuple[Row, Callable[..., Row]]]:
    """Yield what tells the rows of a study apart, and what makes the rest of each."""
    if study == "table":
        for model in unlike_steps.SIZES:
            for slower in SLOWER:
                yield {"model": model, "slower": slower}, unlike_steps.table_row
    elif study == "ablation":
        for model in models:
            for pair, gbit in product(unlike_steps.PAIRS, GBITS):
                yield {"model": model, "pair": pair, "gbit": gbit}, unlike_steps.ablation_row
    elif study == GATHERS:
        for kib, shares in product(shaped_gathers.KIB, shaped_gathers.SKEWS):
            yield {"shares": shares, "kib": kib}, shaped_gathers.gather_row
    else:
        make = toy_row if study == "toys" else synthesis_row
        for seed in range(TOYS):
            yield {"seed": seed}, make


@click.command(help=__doc__)
@cli.listed("--studies", COLUMNS, [study for study in COLUMNS if study != GATHERS])
@cli.listed("--models", moe_models.MODELS, help="of the ablation")
@click.option(
    "--budget", default=10.0, show_default=True, help="seconds for each search of a model's plan"
)
@cli.folder("out/hap")
def command(studies: Sequence[str], models: Sequence[str], budget: float, folder: Path) -> int:
    """Make what is missing, print and write the tables."""
    kept, missed = RowStore(folder / "rows.jsonl"), False
    for study in studies:
        found = []
        for case, make in _cases(study, models):
            planned = {"budget_s": budget} if study in ("table", "ablation") else {}
            files = {"folder": folder} if planned or study == GATHERS else {}
            key = {"study": study, **case, **planned}
            found.append(kept.once(key, partial(make, **case, **planned, **files)))
        frame = pd.DataFrame(found)
        missed |= bool(MISSES[study](frame).any())
        told = SUMS.get(study, pd.DataFrame.copy)(frame)
        print(f"\n{study}\n{frames.text(told, COLUMNS[study])}", flush=True)
        frames.save(frame, folder, study)
    return cli.MISSED if missed else 0


def toy_row(seed: int) -> Row:
    """Return the seconds of the best plan of a toy, of the race's and of HAP's alternation."""
    one = toy(seed)
    best = min(map(one.optimum_s, one.meshes(MOST_UNITS)))
    found = one.hap()
    return {
        "even_s": one.optimum_s(one.even), "best_s": best, "race_s": one.race_s(),
        "hap_s": found.result.cost_s, "tried": len(found.tried),
    }  # fmt: skip


def synthesis_row(seed: int) -> Row:
    """Return the states that A* looks at on the even mesh, and the seconds with and without its rule."""
    one = toy(seed)
    problem, found = one.problem(one.even), Row()
    for heuristic in synthesis.HEURISTICS:
        result = synthesis.search(problem, heuristic=heuristic, communicated_once=False)
        found |= {heuristic: result.evaluations, "free_s": result.cost_s}
    return {**found, "once_s": synthesis.search(problem).cost_s}


def _ablation(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with speed-ups: of the search over DP-EV, of shares over that."""
    return frame.assign(q=frame.data_s / frame.even_s, b=frame.even_s / frame.shares_s)


def _toys(frame: pd.DataFrame) -> pd.DataFrame:
    loss = (frame.hap_s / frame.best_s - 1).clip(lower=0.0)
    return pd.DataFrame([{
        "toys": len(frame), "race finds it": int((frame.race_s <= frame.best_s * EQUAL).sum()),
        "shares win": int((frame.best_s * EQUAL < frame.even_s).sum()),
        "hap finds it": int((frame.hap_s <= frame.best_s * EQUAL).sum()),
        "hap loses at most": loss.max(), "on average": loss.mean(),
    }])  # fmt: skip


def _synthesis(frame: pd.DataFrame) -> pd.DataFrame:
    loss = frame.once_s / frame.free_s - 1
    states = {f"states, {name}": int(frame[name].sum()) for name in synthesis.HEURISTICS}
    worse = {"sent once loses on": int((loss > EQUAL - 1).sum()), "at most": loss.max()}
    return pd.DataFrame([{"toys": len(frame), **states, **worse}])


SUMS = {"ablation": _ablation, "toys": _toys, "synthesis": _synthesis}
MISSES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "table": lambda frame: frame.shares_s > frame.even_s * EQUAL,
    "ablation": lambda frame: frame.shares_s > frame.even_s * EQUAL,
    "toys": lambda frame: frame.race_s > frame.best_s * EQUAL,
    "synthesis": lambda frame: frame.free_s > frame.once_s * EQUAL,
    GATHERS: lambda frame: pd.Series([(frame.chosen == frame.faster).mean() < RIGHT]),
}

if __name__ == "__main__":
    sys.exit(cli.run(command, "hap"))
