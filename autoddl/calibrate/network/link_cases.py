"""What fit-network measures: cases, which ranks take part in each, and their schedule.

No engine here: the parent schedules the cases, the ranks (probes.link_probe) carry them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.perfmodel.collectives import COLLECTIVES as ALL_COLLECTIVES
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.sbp.boxing import ALL_TO_ALL

Floats = npt.NDArray[np.float64]

INSIDE, BETWEEN = "gpu", "node"
_CHAIN_BYTES = 16 << 20  # short chains of long messages: OneFlow never frees a graph's buffers
_BUFFERS_PER_STEP = 8  # messages that one step of a chain and of its twin hold
MOST_STEPS = 16
_LONG = 4 << 20  # bytes
_PAIRED = 2.5


@dataclass(frozen=True)
class RankGrid:
    """Ranks are numbered node by node."""

    nodes: int
    ranks_per_node: int

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the levels, outermost first."""
        return (BETWEEN, INSIDE) if self.nodes > 1 else (INSIDE,)

    @property
    def ranks(self) -> int:
        """Count the ranks of all nodes."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class CollectiveCase:
    """One collective in one kind of group, one message size: a chain of probes.boxing_chains.

    `level`, `group_size`, `inner` and `groups` are those of perfmodel.profile.Link: the group has
    `inner` members on each of group_size/inner nodes (level "node") or lies inside a node ("gpu");
    `groups` such groups share each link of the level. `size_bytes` is the n of perfmodel.collectives.
    """

    mode: str
    collective: str
    level: str
    group_size: int
    size_bytes: int
    inner: int = 1
    groups: int = 1
    most_steps: int = MOST_STEPS

    @property
    def steps(self) -> int:
        """Return how many boxings the chain has, an even number."""
        return max(2, min(self.most_steps, _CHAIN_BYTES // self.size_bytes) // 2 * 2)

    @property
    def paired(self) -> bool:
        """Tell whether single ranks send to single ranks."""
        return self.collective == SEND_RECEIVE

    @property
    def repeats_x(self) -> bool:
        """Tell whether each boxing's result is the next one's input."""
        return self.collective in (ALL_TO_ALL, SEND_RECEIVE)

    @property
    def weight(self) -> float:
        """Return how much time the case deserves beside others.

        β hangs on the long messages; what one rank sends to another is short beside a call's noise.
        """
        return (_PAIRED if self.paired else 1.0) * (1.0 + 2.0 * min(1.0, self.size_bytes / _LONG))

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory the case takes on each rank."""
        return _BUFFERS_PER_STEP * self.steps * self.size_bytes

    @property
    def label(self) -> str:
        """Return the case in words, without its size."""
        name = self.collective.replace("_", "-")
        where = f"over {self.group_size} ranks"
        if self.level == BETWEEN:
            where += " across nodes" if self.inner > 1 else " between nodes"
        return f"{name} {where}" + (f", {self.groups} groups" if self.groups > 1 else "")

    def mesh(self, cluster: RankGrid) -> list[Any]:
        """Return the ranks that take part, as nested lists: one or two axes.

        A collective's measured axes are `measured_axes`; the other axis counts groups.
        """
        r, p = cluster.ranks_per_node, self.group_size
        if self.level == INSIDE:
            if self.groups == 1 and r > p:
                return list(range(p))
            rows = [list(range(k, k + p)) for k in range(0, cluster.ranks, p)]
            return rows if len(rows) > 1 else rows[0]
        count = p // self.inner
        width = self.inner if self.inner > 1 else self.groups
        rows = [list(range(k * r, k * r + width)) for k in range(count)]
        return rows if width > 1 else [row[0] for row in rows]

    def measured_axes(self, cluster: RankGrid) -> tuple[bool, ...]:
        """Tell for each axis of `mesh` whether the collective works along it."""
        if not isinstance(self.mesh(cluster)[0], list):
            return (True,)
        if self.level == INSIDE:
            return (False, True)
        return (True, self.inner > 1)

    def groups_at_work(self, cluster: RankGrid) -> int:
        """Count the groups on all nodes."""
        return len(self.members(cluster)) // self.group_size

    def pairs(self, cluster: RankGrid) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the senders and their receivers."""
        r = cluster.ranks_per_node
        if self.level == BETWEEN:
            first = tuple(range(self.groups))
            return first, tuple(r + k for k in first)
        half = range(r // 2) if self.groups > 1 else range(1)
        nodes = range(cluster.nodes) if self.groups == r // 2 else range(1)
        senders = tuple(n * r + k for n in nodes for k in half)
        return senders, tuple(k + r // 2 for k in senders)

    def members(self, cluster: RankGrid) -> tuple[int, ...]:
        """Return the ranks that take part, in order."""
        if self.paired:
            senders, receivers = self.pairs(cluster)
            return tuple(sorted((*senders, *receivers)))
        mesh = self.mesh(cluster)
        return tuple(k for row in mesh for k in (row if isinstance(row, list) else [row]))

    def workers(self, cluster: RankGrid) -> tuple[int, ...]:
        """Return the ranks that compute at the same time: all members, or the senders of pairs."""
        return self.pairs(cluster)[0] if self.paired else self.members(cluster)

    def bystanders(self, cluster: RankGrid) -> tuple[int, ...]:
        """Return the other ranks; they have to call the programs all the same."""
        workers = set(self.workers(cluster))
        return tuple(rank for rank in range(cluster.ranks) if rank not in workers)


def schedule(
    cluster: RankGrid,
    *,
    modes: Sequence[str],
    sizes: Sequence[int],
    collectives: Sequence[str] = ALL_COLLECTIVES,
    group_sizes: Sequence[int] | None = None,
    most_steps: int = MOST_STEPS,
    shared_only: bool = False,
) -> list[CollectiveCase]:
    """Return all cases: every collective in every kind of group in every size.

    Kinds of groups: inside a node every divisor of its ranks, all groups at work at once, and for
    the largest proper divisor one group alone as well; between nodes every divisor of the nodes,
    one group alone and one per rank of a node; across, every node with as many ranks of each as
    divide them, in one group. `shared_only` leaves out the groups that work alone although others
    could.
    """
    return [
        CollectiveCase(
            mode,
            kind.collective,
            kind.level,
            kind.group_size,
            size,
            inner=kind.inner,
            groups=kind.groups,
            most_steps=most_steps,
        )
        for mode in modes
        for kind in _kinds(cluster, collectives)
        if group_sizes is None or kind.group_size in group_sizes
        if not (shared_only and kind.alone)
        for size in sizes
    ]  # fmt: skip


@dataclass(frozen=True)
class _GroupKind:
    collective: str
    level: str
    group_size: int
    inner: int = 1
    groups: int = 1
    alone: bool = False  # although other groups could work beside it


def _kinds(cluster: RankGrid, collectives: Sequence[str]) -> Iterator[_GroupKind]:
    nodes, r = cluster.nodes, cluster.ranks_per_node
    for collective in collectives:
        if collective == SEND_RECEIVE:
            yield from _pair_kinds(cluster)
            continue
        for p in _divisors(r):
            yield _GroupKind(collective, INSIDE, p, groups=r // p)
        if len(_divisors(r)) > 1:
            yield _GroupKind(collective, INSIDE, _divisors(r)[1], alone=True)
        for count in _divisors(nodes):
            yield _GroupKind(collective, BETWEEN, count, groups=r)
            if r > 1:
                yield _GroupKind(collective, BETWEEN, count, alone=True)
            for inner in _divisors(r):
                yield _GroupKind(collective, BETWEEN, count * inner, inner=inner, alone=inner < r)


def _pair_kinds(cluster: RankGrid) -> Iterator[_GroupKind]:
    for level, pairs in ((INSIDE, cluster.ranks_per_node // 2), (BETWEEN, cluster.ranks_per_node)):
        if pairs and level in cluster.levels:
            yield _GroupKind(SEND_RECEIVE, level, 2, groups=pairs)
            if pairs > 1:
                yield _GroupKind(SEND_RECEIVE, level, 2, alone=True)


def _divisors(count: int) -> list[int]:
    """Return the divisors above 1, largest first."""
    return [d for d in range(count, 1, -1) if count % d == 0]


def pack(cases: Sequence[CollectiveCase], *, memory_bytes: int) -> list[list[CollectiveCase]]:
    """Split the cases into batches whose ranks need at most `memory_bytes` each (or one case).

    A batch is one launch: only ending a process frees the buffers of its graphs.
    """
    batches: list[list[CollectiveCase]] = [[]]
    used = 0
    for case in cases:
        if batches[-1] and used + case.memory_bytes > memory_bytes:
            batches.append([])
            used = 0
        batches[-1].append(case)
        used += case.memory_bytes
    return batches


@dataclass(frozen=True)
class Timing:
    """What a case took: `repetitions` pairs of calls; seconds of one collective.

    `size_bytes` is that of the tensors really sent. `seconds` is what to fit; the others describe the
    repetitions (negative where noise was larger than the collective).
    """

    case: CollectiveCase
    size_bytes: float
    repetitions: int
    seconds: float
    min_s: float
    median_s: float
    max_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def timing_of(case: CollectiveCase, size_bytes: float, taken: Floats) -> Timing:
    """Return the row of repeated calls; `taken` is [repetitions, 2], seconds of chain and twin.

    `seconds` is the Hodges–Lehmann estimate of their differences, the median of the means of all
    pairs of them: a third may be wild, and it repeats nearly as well as the mean. (Of two halves of
    a measurement on crowded cores, it differed by 17 %, the median by 21 %, quartiles by more.)
    """
    each = (taken[:, 0] - taken[:, 1]) / case.steps
    first, second = np.triu_indices(len(each))
    typical = float(np.median((each[first] + each[second]) / 2))
    least, middle, most = (float(x) for x in np.quantile(each, (0, 0.5, 1)))
    return Timing(case, size_bytes, len(each), typical, least, middle, most)


def timing_from_json(data: Any) -> Timing:
    """Rebuild a row.

    Raises:
        KeyError, TypeError: it is not one.
    """
    return Timing(**{**data, "case": CollectiveCase(**data["case"])})
