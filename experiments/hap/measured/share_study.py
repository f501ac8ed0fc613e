"""What is measured: testbeds of a fast and a slow node, models, which shares are tried beside ours.

Of a bed whose ranks have 0.8 and 0.2 of a core 3/1 gives the fast node three units of every cut. Virtual
ranks stand for units: 0.8:0.2 is 4 + 1 equal ranks of 0.2 each. OneFlow starts on nodes of equally many
ranks only, so each of them is a node, with a link of its own: they have more links than their devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoddl.sbp.shares import unit_vectors
from experiments.fidelity.workload import Bed

KINDS = ("fast", "slow")
RATE = "4gbit"
MOST_UNITS = 16

Vector = tuple[int, int]
"""Units of the fast node and of the slow one."""


@dataclass(frozen=True)
class ShareBed:
    """A fast and a slow node of so many ranks each, which have these quotas of a core."""

    name: str
    ranks: int
    quotas: tuple[float, float]
    scanned: int
    """Share vectors that are run, those nearest to the ratio of rates first."""

    @property
    def bed(self) -> Bed:
        """Return it as testbeds are described."""
        return Bed(self.name, 2, self.ranks, RATE, ",".join(map(str, self.quotas)), KINDS)

    @property
    def virtual(self) -> Mapping[str, Any]:
        """Return the testbed of virtual ranks, which have the quota of a slow rank each."""
        fast, slow = self.quotas
        count = self.ranks * (round(fast / slow) + 1)
        return {"nodes": count, "ranks": 1, "rate": RATE, "cpu": str(slow)}


@dataclass(frozen=True)
class ShareStudy:
    """Testbeds, sizes of models; in each of the passes plans take so many rounds of turns.

    A search may take `budget_s`. `links` are options of fit-network. All ops are timed, or only what
    takes seconds (`quick`).
    """

    beds: Sequence[ShareBed]
    models: Mapping[str, Mapping[str, Any]]
    passes: int
    rounds: int
    budget_s: float
    links: Sequence[str]
    quick: bool = False


BATCH = 60  # divided by 2, 3, 4, 5, 6, 10, 12 and 15 units, and by as many virtual ranks
FULL = ShareStudy(
    [
        ShareBed("2x1-0.8-0.4", 1, (0.8, 0.4), 5),
        ShareBed("2x1-0.8-0.2", 1, (0.8, 0.2), 12),
        ShareBed("2x2-0.6-0.3", 2, (0.6, 0.3), 5),
    ],
    {
        "gpt": {
            "layers": 2, "width": 192, "heads": 4, "sequence": 32, "vocabulary": 512, "batch": BATCH,
        },
        "vgg13": {
            "image": 40, "classes": 128, "channel_scale": 1 / 4, "dense": 256, "batch": BATCH,
        },
    },
    passes=1, rounds=6, budget_s=6.0,
    links=(
        "--quick", "--minbytes", "256K", "--maxbytes", "4M", "--stepfactor", "4", "--budget", "10",
    ),
)  # fmt: skip
QUICK = ShareStudy(
    [ShareBed("quick-0.8-0.4", 1, (0.8, 0.4), 2)],
    {"gpt": {"layers": 1, "width": 64, "heads": 2, "sequence": 32, "vocabulary": 64, "batch": 12}},
    passes=1, rounds=3, budget_s=1.0,
    links=("--quick", "--minbytes", "64K", "--maxbytes", "256K", "--budget", "2"),
    quick=True,
)  # fmt: skip


def vectors(batch: int, slower: float, count: int) -> list[Vector]:
    """Return so many share vectors that divide a batch, even ones first.

    Then come those nearest to a node that is so many times as slow: for 2 these are 2/1, 7/3 and 3/2 of a
    batch of 60.
    """
    found = [(fast, slow) for fast, slow in unit_vectors([1, 1], MOST_UNITS) if fast > slow]
    found = [pair for pair in found if batch % sum(pair) == 0]
    found.sort(key=lambda pair: (abs(math.log(pair[0] / pair[1] / slower)), sum(pair)))
    return [(1, 1), *found[: count - 1]]
