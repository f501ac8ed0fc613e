"""AMP's space of strategies: degrees of parallelism, micro-batches, and dominoes on a grid of devices.

A strategy has tensor-parallel groups of `tmp` devices of one node, `dp` of them side by side in a stage,
and micro-batches of `mbs` samples each. Devices are a grid, a node in each column; a stage is a domino
of tmp × dp devices that stands (tmp down a column) or lies (dp down a column), and the dominoes tile the
grid. Stages follow each other as their first devices do, column by column. (A note of §6.3 has devices of
a column in one tensor-parallel group always; where a domino lies, that would swap its degrees.)

On 4 nodes of 4 devices with a batch of 32 there are 53 (tmp, dp, mbs), and 449 with all tilings:

    tmp × dp   1×1 1×2 2×1 1×4 4×1 2×2 2×4 4×2 4×4 (1×8, 2×8, 1×16 are no domino of a 4×4 grid)
    tilings      1  36  36   2   2   1   2   2   1

Source: AMP (Li et al., NeurIPS 2022), supplement §6.2 and §6.3, figure 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoddl.errors import AutoDDLError

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
    """Return all (tmp, dp, mbs): tmp within a node, tmp · dp of the devices, dp · mbs of the batch.

    Raises:
        AutoDDLError: no devices, or no batch.
    """
    for name, value in (("nodes", nodes), ("per_node", per_node), ("batch", batch)):
        if value < 1:
            raise AutoDDLError(f"{name}: got {value}; allowed are whole numbers from 1 on")
    return [
        (tmp, dp, mbs)
        for tmp in _divisors(per_node)
        for dp in _divisors(nodes * per_node // tmp)
        if batch % dp == 0
        for mbs in _divisors(batch // dp)
    ]


def megatron_stages(nodes: int, per_node: int, tmp: int, dp: int) -> tuple[Domino, ...]:
    """Return the stages in Megatron's placement: ranks in their order, tmp innermost, pp outermost."""
    size = tmp * dp
    return tuple(tuple(range(a, a + size)) for a in range(0, nodes * per_node, size))


def tilings(nodes: int, per_node: int, tmp: int, dp: int) -> Iterator[tuple[Domino, ...]]:
    """Yield the ways to cover all devices with dominoes of tmp × dp, each by its stages in order."""
    shapes = dict.fromkeys([(tmp, dp), (dp, tmp)])  # devices of a node, nodes
    free = [[True] * per_node for _ in range(nodes)]

    def covered(done: tuple[Domino, ...]) -> Iterator[tuple[Domino, ...]]:
        first = next(((n, d) for n in range(nodes) for d in range(per_node) if free[n][d]), None)
        if first is None:
            yield done
            return
        node, device = first
        for down, across in shapes:
            cells = [(node + n, device + d) for n in range(across) for d in range(down)]
            inside = node + across <= nodes and device + down <= per_node
            if not inside or not all(free[n][d] for n, d in cells):
                continue
            for n, d in cells:
                free[n][d] = False
            yield from covered((*done, _domino(cells, (down, across) == (tmp, dp), per_node, dp)))
            for n, d in cells:
                free[n][d] = True

    return covered(())


def strategies(nodes: int, per_node: int, batch: int) -> Iterator[Strategy]:
    """Yield the whole space with all tilings; degrees without a tiling are not in it."""
    for tmp, dp, mbs in degrees(nodes, per_node, batch):
        for stages in tilings(nodes, per_node, tmp, dp):
            yield Strategy(tmp, dp, mbs, stages)


def _domino(cells: list[tuple[int, int]], stands: bool, per_node: int, dp: int) -> Domino:
    """Return the devices of a domino, tensor-parallel groups one after the other.

    Down a column they are a tensor-parallel group if it stands, else one replica each.
    """
    numbers = [n * per_node + d for n, d in cells]
    return tuple(numbers if stands else [m for a in range(dp) for m in numbers[a::dp]])


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
