"""The classes of parts that a cluster may be divided into: so many devices of which kinds, on a mesh.

Of 3 nodes with 4 V100 and one with 4 T4: 1, 2 or 4 V100 of a node, 2 or 3 nodes of them, 1, 2 or 4 T4;
and, in equal parts of the whole, nodes of both kinds together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoddl.sbp.mesh import Cluster, Level, Mesh

# Nodes of a kind; more are parted into divisors of their number alone. Half leaves out three of five
# nodes; twice gives 16 nodes of a kind twice the classes, each of them a search.
MOST_OF_ANY_COUNT = 8
MOST_MIXTURES = 16  # of kinds in parts of one size; more than 4 nodes of 3 kinds have


@dataclass(frozen=True)
class PartClass:
    """Parts of a `mesh` that take `needs[p]` devices of pool p, of these `kinds`."""

    mesh: Mesh
    needs: tuple[int, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Pools:
    """The devices of a cluster by kind: their ranks, and how many each node has."""

    kinds: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    per_node: int

    @classmethod
    def of(cls, cluster: Cluster) -> Pools:
        """Return the devices of a cluster; of one kind without a name where all are alike."""
        found: dict[str, list[int]] = {}
        for rank in range(cluster.size):
            found.setdefault(cluster.kind(rank), []).append(rank)
        return cls(tuple(found), tuple(map(tuple, found.values())), cluster.unit_size)

    def taken(self, begin: Sequence[int], end: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of a part, counted from the end of each pool, so that the first come first."""
        spans = zip(self.ranks, begin, end, strict=True)
        return tuple(
            sorted(r for ranks, a, b in spans for r in ranks[len(ranks) - b : len(ranks) - a])
        )


def part_classes(cluster: Cluster, most_axes: int | None) -> Iterator[PartClass]:
    """Yield the classes of parts, with meshes of at most so many axes, those of few devices first."""
    pools = Pools.of(cluster)
    for needs in sorted(set(_needs(cluster, pools)), key=lambda need: (sum(need), need)):
        kinds = tuple(k for k, n in zip(pools.kinds, needs, strict=True) if n and k)
        for each in _devices(cluster, sum(needs)).meshes(most_axes):
            yield PartClass(each, needs, kinds)


def _needs(cluster: Cluster, pools: Pools) -> Iterator[tuple[int, ...]]:
    """Yield how many devices of each pool parts may take."""
    node = pools.per_node
    nodes = [len(ranks) // node for ranks in pools.ranks]
    inside = [n for n in range(1, node + 1) if node % n == 0]
    for pool, count in enumerate(nodes):
        any_count = count <= MOST_OF_ANY_COUNT
        several = [n for n in range(2, count + 1) if any_count or count % n == 0]
        for need in (*inside, *(n * node for n in several)):
            yield tuple(need if p == pool else 0 for p in range(len(nodes)))
    for size in (n for n in range(2, sum(nodes) + 1) if sum(nodes) % n == 0):
        mixed = itertools.product(*(range(min(size, count) + 1) for count in nodes))
        found = [m for m in mixed if sum(m) == size and sum(map(bool, m)) > 1]
        for counts in found if len(found) <= MOST_MIXTURES else ():
            yield tuple(n * node for n in counts)


def _devices(cluster: Cluster, size: int) -> Cluster:
    """Return so many devices, in one node or in whole ones."""
    outer, *inner = cluster.levels
    if size >= cluster.unit_size and inner:
        levels = [Level(outer.name, size // cluster.unit_size), *inner]
    else:
        levels = [Level(cluster.levels[-1].name, size)]
    kept = [level for level in levels if level.size > 1] or levels[-1:]
    return Cluster(tuple(kept))
