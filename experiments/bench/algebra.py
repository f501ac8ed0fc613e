"""Time what planning asks of the algebra, on even meshes: `python -m experiments.bench.algebra`.

`--against FOLDER` times another checkout, too: in turns with this one, each turn two fresh processes,
which begin in changing order. A ratio is the median of those of the turns; where one is above 1.03 the
exit code is 1. All are seconds of the processor, so other jobs disturb little, but they do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import click
import pandas as pd

from autoddl.errors import AutoDDLError
from experiments.bench import algebra_parts
from experiments.lib import cli, frames
from experiments.lib.programs import captured
from experiments.lib.ranks import ROOT

SLOWER = 1.03
MODEL = "gpt"
SHOWN: frames.Formats = {"part": "{}", "ms": "{:.2f}", "against ms": "{:.2f}", "ratio": "{:.3f}"}


@click.command(help=__doc__)
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="another checkout, timed in turns")  # fmt: skip
@click.option("--turns", type=click.IntRange(1), default=9, show_default=True)
@cli.folder("out/algebra")
def command(against: Path | None, turns: int, folder: Path) -> int:
    """Print the milliseconds of each part; return 1 where one is slower than the other checkout's."""
    program = folder / f"{MODEL}.json"
    captured(program, MODEL)
    sides = [ROOT] if against is None else [ROOT, against]
    found: dict[Path, list[dict[str, float]]] = {side: [] for side in sides}
    for turn in range(turns):
        for side in sides if turn % 2 else reversed(sides):
            found[side].append(timed(side, program))
    rows = [row(part, [[turn[part] for turn in found[side]] for side in sides])
            for part in algebra_parts.PARTS]  # fmt: skip
    print(frames.text(pd.DataFrame(rows), {name: SHOWN[name] for name in rows[0]}))
    slower = [each["part"] for each in rows if float(each.get("ratio", 0.0)) > SLOWER]
    if slower:
        print(f"slower by more than {SLOWER - 1:.0%}: {', '.join(map(str, slower))}")
    return cli.MISSED if slower else 0


def timed(checkout: Path, program: Path) -> dict[str, float]:
    """Return the seconds of each part in a fresh process with the code of a checkout.

    Raises:
        AutoDDLError: there is no such code, or it fails.
    """
    if not (checkout / "autoddl" / "__init__.py").exists():
        raise AutoDDLError(f"--against {checkout}: got a folder without autoddl; give a checkout")
    words = [sys.executable, algebra_parts.__file__, str(program.resolve())]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise AutoDDLError(f"{checkout}: {done.stderr.strip().splitlines()[-1]}")
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def row(part: str, seconds: list[list[float]]) -> frames.Row:
    """Return the medians of a part over the turns of each checkout, and of their ratios."""
    names = ("ms", "against ms")
    found: frames.Row = {"part": part}
    found |= {n: 1e3 * statistics.median(s) for n, s in zip(names, seconds, strict=False)}
    if len(seconds) > 1:
        found["ratio"] = statistics.median(a / b for a, b in zip(*seconds, strict=True))
    return found


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.algebra"))
