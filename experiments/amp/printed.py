"""Tables 6 to 11 of AMP: the strategies that the paper ran, and the seconds of a step of each.

A row has samples per micro-batch, the degrees of tensor and pipeline parallelism, and the cut, in units
of which the GPT has 30 and TransGAN 56. All devices are used: dp = 16 / (tmp · stages). Table 10 prints 2
and 4 stages for pp = 1 and 2; here its rows have as many stages as their cuts.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.5, tables 6 to 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import NamedTuple

from autoddl.search.rivals.amp.strategies import Strategy, megatron_stages

NODES, PER_NODE = 4, 4
_OF_16_GPT = (0, 4, 6, 8, 10, 12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 25, 30)
_OF_16_MIXED = (0, 3, 5, 7, 9, 11, 13, 15, 16, 17, 19, 20, 21, 22, 23, 25, 30)
_OF_16_GAN = (0, 5, 8, 11, 14, *range(42, 53), 56)
_OF_2_GAN, _CUT_BY_PARAMETERS = (0, 41, 56), (0, 9, 41, 47, 56)
_OF_4_GAN = (0, 12, 44, 48, 56)


class PrintedRow(NamedTuple):
    """A strategy and its seconds per step, nan where it was out of memory; `pp` as printed."""

    mbs: int
    tmp: int
    pp: int
    cut: tuple[int, ...]
    seconds: float

    @property
    def stages(self) -> int:
        """Return how many stages the cut has."""
        return len(self.cut) - 1

    @property
    def strategy(self) -> Strategy:
        """Return the strategy in Megatron's placement on the 16 devices."""
        dp = NODES * PER_NODE // (self.tmp * self.stages)
        return Strategy(self.tmp, dp, self.mbs, megatron_stages(NODES, PER_NODE, self.tmp, dp))


_ROWS: Mapping[int, list[tuple[int, int, int, tuple[int, ...], float]]] = {
    6: [
        (1, 1, 1, (0, 30), 1.32), (2, 1, 2, (0, 14, 30), 1.37), (2, 2, 1, (0, 30), 1.58),
        (4, 1, 2, (0, 14, 30), 1.63), (4, 2, 1, (0, 30), 1.53),
    ],
    7: [
        (1, 1, 2, (0, 15, 30), 1.28), (1, 1, 4, (0, 9, 15, 21, 30), 1.20),
        (1, 1, 8, (0, 6, 9, 12, 15, 18, 21, 24, 30), 1.23), (2, 1, 2, (0, 15, 30), 1.38),
        (1, 1, 16, _OF_16_GPT, 1.55),
    ],
    8: [
        (2, 1, 2, (0, 14, 30), 2.27), (4, 1, 2, (0, 14, 30), 2.32), (8, 1, 4, (0, 8, 14, 20, 30), 1.97),
        (8, 2, 2, (0, 14, 30), 2.43), (16, 2, 4, (0, 8, 14, 20, 30), 2.34),
    ],
    9: [
        (1, 1, 4, (0, 7, 14, 20, 30), 1.47), (1, 1, 8, (0, 5, 9, 12, 15, 18, 21, 24, 30), 1.28),
        (1, 1, 16, _OF_16_MIXED, 1.52), (2, 1, 4, (0, 8, 14, 20, 30), 1.52),
        (2, 1, 8, (0, 5, 9, 12, 14, 17, 20, 23, 30), 1.54),
    ],
    10: [
        (1, 1, 1, _OF_2_GAN, 1.89), (2, 1, 2, _CUT_BY_PARAMETERS, 1.99),
        (4, 1, 1, _OF_2_GAN, nan), (4, 1, 2, _CUT_BY_PARAMETERS, nan),
    ],
    11: [
        (1, 1, 4, _OF_4_GAN, 1.07), (2, 1, 4, _OF_4_GAN, 1.08), (2, 1, 16, _OF_16_GAN, 1.13),
        (1, 1, 16, _OF_16_GAN, 1.30), (2, 1, 8, (0, 7, 12, 42, 44, 47, 49, 51, 56), 1.39),
    ],
}  # fmt: skip
TABLES: Mapping[int, tuple[PrintedRow, ...]] = {
    table: tuple(PrintedRow(*row) for row in rows) for table, rows in _ROWS.items()
}
NOTES: Mapping[int, str] = {
    10: "Table 10 prints 2 and 4 stages for pp = 1 and 2; priced are as many stages as the cuts have. "
    "Larger micro-batches were out of memory; of these its two cuts with 4 samples are added."
}
