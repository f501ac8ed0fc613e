"""Stages on graphs that are no chain (Rhino §5): `python -m experiments.rhino.free_stages_study`.

    proofs  random graphs of up to 9 nodes in up to 3 stages: the program beside brute force over all
            chains of order ideals (300), and the balanced assignments that bounds cut off (600)

The exit code is 1 where the program misses an optimum, or the derived bounds cut something off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pandas as pd

from experiments.lib import cli, frames
from experiments.lib.frames import Row
from experiments.rhino.stage_toys import bounds_row, optimum_row

OPTIMA, BOUNDS = 300, 600  # random graphs
EQUAL = 1e-6  # relative


def proofs() -> list[Row]:
    """Return one row: what the program missed, where it is faster than cuts, and what bounds cut off."""
    optima = pd.DataFrame([optimum_row(seed) for seed in range(OPTIMA)])
    bounds = pd.DataFrame([bounds_row(seed) for seed in range(BOUNDS)])
    found = optima[["tightened_s", "told_s", "plain_s"]]
    missed = (found.sub(optima.best_s, axis=0).abs().gt(EQUAL * optima.best_s, axis=0)).any(axis=1)
    dearer = optima.told_s > optima.contiguous_s * (1 + EQUAL)
    faster = optima.told_s < optima.contiguous_s * (1 - EQUAL)
    return [{
        "graphs": OPTIMA, "missed": int(missed.sum()), "dearer": int(dearer.sum()),
        "faster": int(faster.sum()), "bounded": BOUNDS,
        **{n: int(bounds[n].sum()) for n in ("balanced", "derived", "printed", "repaired")},
    }]  # fmt: skip


def misses(study: str, frame: pd.DataFrame) -> bool:
    """Tell whether rows of a study show what must not be."""
    wrong = {"proofs": ("missed", "dearer", "derived")}
    return any(frame[name].gt(0).any() for name in wrong.get(study, ()))


STUDIES: dict[str, Callable[[], list[Row]]] = {"proofs": proofs}
COLUMNS: dict[str, frames.Formats] = {
    "proofs": dict.fromkeys(
        ("graphs", "missed", "dearer", "faster", "bounded", "balanced", "derived", "printed",
         "repaired"), "{}",
    ),
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--studies", STUDIES)
@cli.folder("out/rhino")
def command(studies: Sequence[str], folder: Path) -> int:
    """Print and write the tables."""
    missed = False
    for name in studies:
        frame = pd.DataFrame(STUDIES[name]())
        print(f"\n{name}\n{frames.text(frame, COLUMNS[name])}")
        frames.save(frame, folder, f"free_stages_{name}")
        missed |= misses(name, frame)
    return cli.MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "rhino.free_stages_study"))
