"""Rhino's search (seed 004) beside exact search, by the model: `python -m experiments.rhino`.

    toys    every toy of the zoo on 4 and 2x2 devices for which what ops and messages take anyway counts
            nothing: O3, O3 with cones decided by their roots as in the paper, and O2
    depths  figure 10: a GPT of width 512, 12 to 144 layers, two V100s: costs and seconds
    counts  table 5: critical nodes and the segments between them
    memory  the k largest parameters cut, and ZeRO 2, within 90 to 40 % of what data parallelism holds, on
            four V100s

All is predicted, the sum of compute and communication. Kept rows are used again. The exit code is 1 where
O3 proves another optimum than exact search, or where that is dearer than a rival within the same memory.
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

from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.models import ZOO
from experiments.rhino import search_rows as rows
from experiments.rhino.search_rows import Sized

LAYERS = (12, 24, 36, 48, 72, 96, 144)
MESHES = ("4", "2x2")
PERCENT = (90, 80, 70, 60, 50, 40)
EQUAL = 1 + 1e-6  # relative; HiGHS's tolerance


def _ms(value: float) -> str:
    return f"{1e3 * value:.3f}"


COLUMNS: dict[str, frames.Formats] = {
    "toys": {
        "model": "{}", "mesh": "{}", "nodes": "{}", "cones": "{}", "roots": "{}", "exact cost_s": _ms,
        "O3": "{:.1%}", "by root": "{:.1%}", "O2": "{:.1%}",
        "exact s": "{:.1f}", "O3 s": "{:.1f}", "by root s": "{:.1f}", "O2 s": "{:.1f}",
    },
    "depths": {
        "layers": "{}", "ops": "{}", "exact cost_s": _ms, "exact gap": "{:.1e}", "O3": "{:.1%}",
        "O2": "{:.1%}", "exact s": "{:.1f}", "O3 s": "{:.1f}", "O2 s": "{:.1f}",
    },
    "counts": {
        "model": "{}", "ops": "{}", "critical": "{}", "proportion": "{:.1%}", "segments": "{}",
        "nodes": "{}", "cones": "{}", "roots": "{}", "paper instructions": "{}",
        "paper critical": "{}", "paper segments": "{}",
    },
    "memory": {
        "model": "{}", "percent": "{}", "exact_s": _ms, "gap": "{:.2%}", "k": "{:.0f}",
        "parameters": "{}", "largest-k": "{:.2%}", "ZeRO 2": "{:.2%}",
    },
}  # fmt: skip


def _cases(
    study: str, models: Sequence[str], budget_s: float, folder: Path
) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Yield what tells the rows of a study apart, and what makes the rest of each."""
    timed = {"budget_s": budget_s}
    if study == "toys":
        for mesh, model in product(MESHES, ZOO):
            make = partial(rows.loss_row, Sized(model, "toy"), mesh, budget_s, folder)
            yield {"model": model, "mesh": mesh, **timed}, make
    elif study == "depths":
        for layers in LAYERS:
            yield {"layers": layers, **timed}, partial(rows.depth_row, layers, budget_s, folder)
    elif study == "counts":
        for model in rows.COUNTED:
            yield {"model": model}, partial(rows.count_row, model, folder)
    else:
        for model, percent in product(models, PERCENT):
            make = partial(rows.memory_row, model, percent, budget_s, folder)
            yield {"model": model, "percent": percent, **timed}, make


@click.command(help=__doc__)
@cli.listed("--studies", COLUMNS)
@cli.listed("--models", rows.LIMITED, help="of the study memory")
@click.option(
    "--budget",
    default=60.0,
    show_default=True,
    help="seconds for each search; those of memory are counted in work",
)
@cli.folder("out/rhino")
def command(studies: Sequence[str], models: Sequence[str], budget: float, folder: Path) -> int:
    """Make what is missing, print and write the tables."""
    kept, missed = RowStore(folder / "rows.jsonl"), False
    for study in studies:
        found = []
        for case, make in _cases(study, models, budget, folder):
            found.append(kept.once({"study": study, **case}, make))
            print(".", end="", flush=True)
        frame = told(study, pd.DataFrame(found))
        missed |= bool(misses(study, frame).any())
        print(f"\n{study}\n{frames.text(frame, COLUMNS[study])}", flush=True)
        if study == "toys":
            print(f"O3 did not end in {budget:g} s on: {unended(frame) or 'none'}")
        frames.save(frame, folder, study)
    return cli.MISSED if missed else 0


def told(study: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a study with what rivals lose, relative to exact search."""
    if study == "counts":
        return frame.assign(proportion=frame.critical / frame.ops)
    if study == "memory":
        loss = {"largest-k": frame.largest_s, "ZeRO 2": frame.zero_s}
        best_s = frame.exact_s.astype(float)
        return frame.assign(**{n: s.astype(float) / best_s - 1 for n, s in loss.items()})
    names = [name for name in ("O3", "by root", "O2") if f"{name} cost_s" in frame]
    costs = {name: frame[f"{name} cost_s"].astype(float) for name in names}
    return frame.assign(**{n: c / frame["exact cost_s"] - 1 for n, c in costs.items()})


def unended(frame: pd.DataFrame) -> str:
    """Return the models and meshes on which the budget ended before O3 did: "gpt 2x2, vit 2x2"."""
    left = frame[frame["O3 cost_s"].isna()]
    return ", ".join(f"{model} {mesh}" for model, mesh in zip(left.model, left.mesh, strict=True))


def misses(study: str, frame: pd.DataFrame) -> pd.Series[Any]:
    """Tell of each row whether it misses what must hold."""
    if study == "counts":
        return frame.critical == 0
    if study == "memory":
        return (frame["largest-k"] < 1 - EQUAL) | (frame["ZeRO 2"] < 1 - EQUAL)
    proven = frame["O3 gap"].astype(float) < EQUAL - 1
    return proven & (frame["O3"].abs() > EQUAL - 1)


if __name__ == "__main__":
    sys.exit(cli.run(command, "rhino"))
