"""AMP's space of strategies: degrees of parallelism, micro-batches, and dominoes on a grid of devices.

A strategy has tensor-parallel groups of `tmp` devices, `dp` of them side by side in a stage, and
micro-batches of `mbs` samples each. Devices are a grid, a node in each column; a stage is a domino of
tmp × dp devices that stands (tmp down a column) or lies (dp down a column), and the dominoes tile the
grid. Stages follow each other as their first devices do, column by column.

On 4 nodes of 4 devices with a batch of 32 there are 53 (tmp, dp, mbs), and 449 with all tilings:

    tmp × dp   1×1 1×2 2×1 1×4 4×1 2×2 2×4 4×2 4×4 (1×8, 2×8, 1×16 are no domino of a 4×4 grid)
    tilings      1  36  36   2   2   1   2   2   1

Source: AMP (Li et al., NeurIPS 2022), supplement §6.2 and §6.3, figure 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Domino = tuple[int, ...]
"""The devices of a stage, numbered node by node; those of a tensor-parallel group one after the other."""


@dataclass(frozen=True)
class Strategy:
    """Degrees of parallelism, samples per micro-batch, and the devices of each stage in their order."""

    tmp: int
    dp: int
    mbs: int
    stages: tuple[Domino, ...]

    def micro_batches(self, batch: int) -> int:
        """Return how many micro-batches a batch has on each group (gas)."""
        return batch // (self.dp * self.mbs)


def degrees(nodes: int, per_node: int, batch: int) -> list[tuple[int, int, int]]:
    """Return all (tmp, dp, mbs): tmp within a node, tmp · dp of the devices, dp · mbs of the batch."""
    return [
        (tmp, dp, mbs)
        for tmp in _divisors(per_node)
        for dp in _divisors(nodes * per_node // tmp)
        if batch % dp == 0
        for mbs in _divisors(batch // dp)
    ]


def megatron_stages(devices: int, tmp: int, dp: int) -> tuple[Domino, ...]:
    """Return the stages in Megatron's placement: ranks in their order, tmp innermost, pp outermost."""
    size = tmp * dp
    return tuple(tuple(range(a, a + size)) for a in range(0, devices, size))


def tilings(nodes: int, per_node: int, tmp: int, dp: int) -> Iterator[tuple[Domino, ...]]:
    """Yield the ways to cover all devices with dominoes of tmp × dp, each by its stages in order."""

    def covered(done: tuple[Domino, ...], free: frozenset[int]) -> Iterator[tuple[Domino, ...]]:
        if not free:
            yield done
            return
        first = min(free)
        for stands in (True, False) if tmp != dp else (True,):
            if first % per_node + (tmp if stands else dp) > per_node:
                continue
            # how far apart devices of a tensor-parallel group are, and their groups
            near, far = (1, per_node) if stands else (per_node, 1)
            stage = tuple(first + r * far + t * near for r in range(dp) for t in range(tmp))
            if free.issuperset(stage):
                yield from covered((*done, stage), free.difference(stage))

    return covered((), frozenset(range(nodes * per_node)))


def strategies(nodes: int, per_node: int, batch: int) -> Iterator[Strategy]:
    """Yield the whole space with all tilings; degrees without a tiling are not in it."""
    for tmp, dp, mbs in degrees(nodes, per_node, batch):
        for stages in tilings(nodes, per_node, tmp, dp):
            yield Strategy(tmp, dp, mbs, stages)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
