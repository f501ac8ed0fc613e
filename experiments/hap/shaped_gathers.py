"""Gathers over shares between nodes on shaped links: padded and grouped, by the clock and as planned.

The links are fitted once, with gathers by the shares 3/1/1/1; which way a plan takes for the others
follows from these. Of 3/1/1/1 padded sends 3 · ½ n, grouped n in more messages.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.boxing_prices import BoxingPrices, ways_of
from autoddl.sbp.boxing import ALL_GATHER, Boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shares import most, units
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed
from experiments.lib.frames import Row

NODES, KIB = 4, (32, 2048)
BED = Bed("gathers", NODES, 1, "200mbit")
SKEWS = (
    "4/3/3/3", "5/5/3/3", "2/2/1/1", "3/2/2/1", "2/1/1/1", "3/1/1/1", "7/3/1/1", "5/1/1/1", "9/1/1/1",
    "13/1/1/1",
)  # fmt: skip
LINKS = (
    "--shares", "3/1/1/1", "--collectives", "all-reduce", "--group-sizes", str(NODES),
    "-b", "16K", "-e", "4M", "--budget", "90", "--mode", "eager",
)  # fmt: skip
LIMIT_S = 180.0
DEVICE = Path(profiles.BUNDLED["cpu"])  # which no gather looks at but for its launch


def gather_row(shares: str, kib: int, folder: Path) -> Row:
    """Return the seconds of both ways, measured and predicted, and which a plan takes.

    Raises:
        AutoDDLError: not all ranks came to their end.
    """
    with measure.running(BED) as (run, made), tempfile.TemporaryDirectory() as out:
        file = measure.calibrate(BED, made, folder / BED.name, LINKS, DEVICE)
        failed = run("experiments.hap.gather_ranks", [out, shares, str(kib << 10)], LIMIT_S)
        if failed:
            raise AutoDDLError(f"gathers by {shares}: {failed}")
        padded_s, grouped_s = json.loads((Path(out) / "seconds.json").read_text())
    mesh = Mesh.parse(f"[node {NODES}:{shares}]")
    (cut,) = mesh.cuts
    prices = BoxingPrices(mesh, profiles.load(file))
    step = Boxing(ALL_GATHER, (0,), kib << 8)
    way = prices.way(step, 4)
    told_s = map(prices.way_s, ways_of(step, 4, cut))
    return {
        "largest": most(cut) / units(cut), "padded_s": padded_s, "grouped_s": grouped_s,
        **dict(zip(("padded_told_s", "grouped_told_s"), told_s, strict=True)),
        "chosen": "grouped" if way is not None and way.grouped else "padded",
        "faster": "grouped" if grouped_s < padded_s else "padded",
    }  # fmt: skip
