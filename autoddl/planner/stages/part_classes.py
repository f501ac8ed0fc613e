"""The classes of parts that a cluster may be divided into: so many devices of which kinds, on a mesh.

Of 3 nodes with 4 V100 and one with 4 T4: 1, 2 or 4 V100 of a node, 2 or 3 nodes of them, 1, 2 or 4 T4;
and, in equal parts of the whole, nodes of both kinds together. Nodes of unlike size share no part.
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
    """Parts of a `mesh` that take `needs[p]` devices of pool p, of these `kinds`.

    Of a mesh with shares `kinds` tells that of each device.
    """

    mesh: Mesh
    needs: tuple[int, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Pools:
    """The devices of a cluster by kind and size of their nodes: ranks, and how many each node has."""

    kinds: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    per_node: tuple[int, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Pools:
        """Return the devices of a cluster; of one kind without a name where all are alike."""
        found: dict[tuple[str, int], list[int]] = {}
        for rank in range(cluster.size):
            size = cluster.unit_sizes[cluster.unit(rank)]
            found.setdefault((cluster.kind(rank), size), []).append(rank)
        kinds, sizes = zip(*found, strict=True)
        return cls(kinds, tuple(map(tuple, found.values())), sizes)

    def taken(self, begin: Sequence[int], end: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of a part, counted from the end of each pool, so that the first come first."""
        spans = zip(self.ranks, begin, end, strict=True)
        return tuple(
            sorted(r for ranks, a, b in spans for r in ranks[len(ranks) - b : len(ranks) - a])
        )


def part_classes(cluster: Cluster, most_axes: int | None) -> Iterator[PartClass]:
    """Yield the classes of parts, with meshes of at most so many axes, those of few devices first."""
    pools = Pools.of(cluster)
    for needs in sorted(set(_needs(pools)), key=lambda need: (sum(need), need)):
        kinds = tuple(k for k, n in zip(pools.kinds, needs, strict=True) if n and k)
        node = max(size for size, n in zip(pools.per_node, needs, strict=True) if n)
        for each in _devices(cluster, sum(needs), node).meshes(most_axes):
            yield PartClass(each, needs, kinds)


def _needs(pools: Pools) -> Iterator[tuple[int, ...]]:
    """Yield how many devices of each pool parts may take."""
    sizes = pools.per_node
    nodes = [len(ranks) // size for ranks, size in zip(pools.ranks, sizes, strict=True)]
    for pool, (count, node) in enumerate(zip(nodes, sizes, strict=True)):
        inside = [n for n in range(1, node + 1) if node % n == 0]
        any_count = count <= MOST_OF_ANY_COUNT
        several = [n for n in range(2, count + 1) if any_count or count % n == 0]
        for need in (*inside, *(n * node for n in several)):
            yield tuple(need if p == pool else 0 for p in range(len(nodes)))
    for node in set(sizes):
        alike = [count if size == node else 0 for count, size in zip(nodes, sizes, strict=True)]
        for number in (n for n in range(2, sum(alike) + 1) if sum(alike) % n == 0):
            mixed = itertools.product(*(range(min(number, count) + 1) for count in alike))
            found = [m for m in mixed if sum(m) == number and sum(map(bool, m)) > 1]
            for counts in found if len(found) <= MOST_MIXTURES else ():
                yield tuple(n * node for n in counts)


def _devices(cluster: Cluster, size: int, node: int) -> Cluster:
    """Return so many devices, in one node of a size or in whole ones."""
    outer, *inner = cluster.levels
    if size >= node and inner:
        if cluster.sizes:
            inner = [Level(inner[0].name, node)]
        levels = [Level(outer.name, size // node), *inner]
    else:
        levels = [Level(cluster.levels[-1].name, size)]
    kept = [level for level in levels if level.size > 1] or levels[-1:]
    return Cluster(tuple(kept))
