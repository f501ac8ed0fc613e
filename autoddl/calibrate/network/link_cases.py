"""What fit-network measures, as data: settings, the cases that follow from them, what a case took.

No engine here: the parent makes the cases, the ranks carry them out (engine.interface.Probes). Three
ranks on one node give a case for every collective and size over (0, 1, 2), and one for a pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, ClassVar

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.collectives import BROADCAST, SEND_RECEIVE, coefficients
from autoddl.perfmodel.collectives import COLLECTIVES as ALL_COLLECTIVES
from autoddl.sbp.boxing import ALL_GATHER
from autoddl.sbp.shares import cut_of

INSIDE, BETWEEN = "gpu", "node"
_CHAIN_BYTES = 16 << 20  # short chains of long messages: OneFlow never frees a graph's buffers
_BUFFERS_PER_STEP = 8  # messages that one step of a chain and of its twin hold
MOST_STEPS, _QUICK_STEPS = 16, 4
_LONG = 4 << 20  # bytes
_PAIRED = 2.5
# Long enough to be seen beside the noise of a call. With half of it loopback's boxings drown; with twice
# a graph at 500 Mbit/s takes half a second.
_BESIDE_BYTES, _BESIDE_STEPS = 1 << 20, 8
# So short that links hardly count: a message of an all-reduce of 16 KiB keeps ranks from their ops for
# 0.7 ms at 200 Mbit/s and for 1.2 at 100, one of these for 0.45 and 0.44. With 16 steps the medians of
# levels differ by up to 0.09 ms, and their graphs are twice as large.
_SHORT_BYTES, _SHORT_STEPS = 1 << 12, 8

MODES = ("graph", "eager", "both")
SIZES = tuple(1 << k for k in (14, 16, 18, 20, 22, 24))
QUICK_SIZES = (1 << 14, 1 << 19, 1 << 22)
BUDGET_S, QUICK_BUDGET_S = 300.0, 38.0
ITERATIONS, WARM_UP = 1000, 2
_QUICK_PASSES = 3
_FREE = ("iterations", "warm_up", "budget_s", "device")  # to change when going on


@dataclass(frozen=True)
class CollectiveCase:
    """One collective in one kind of group, one message size: a chain of `steps` boxings.

    `level`, `group_size`, `inner` and `groups` are those of perfmodel.profile.Link: the group has
    `inner` members on each of group_size/inner nodes (level "node") or lies inside a node ("gpu");
    `groups` such groups share each link of the level. `size_bytes` is the n of perfmodel.collectives.

    With `shares`, one of each member, it is a gather of so many bytes as scripts do it: of padded shards,
    or grouped, a broadcast from each member, where the collective is that.
    """

    mode: str
    collective: str
    level: str
    group_size: int
    size_bytes: int
    inner: int = 1
    groups: int = 1
    most_steps: int = MOST_STEPS
    shares: tuple[int, ...] = ()
    needed: ClassVar[bool] = False

    @property
    def collectives(self) -> int:
        """Return how many collectives one after the other a boxing of the chain is."""
        return self.group_size if self.collective == BROADCAST else 1

    @property
    def steps(self) -> int:
        """Return how many boxings the chain has, an even number."""
        return max(2, min(self.most_steps, _CHAIN_BYTES // self.size_bytes) // 2 * 2)

    @property
    def paired(self) -> bool:
        """Tell whether single ranks send to single ranks."""
        return self.collective == SEND_RECEIVE

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
        name = self.collective.replace("_", "-")
        if self.shares:
            way = "grouped" if self.collective == BROADCAST else "padded"
            name = f"{way} gather by shares {'/'.join(map(str, self.shares))}"
        where = f"over {self.group_size} ranks"
        if self.level == BETWEEN:
            where += " across nodes" if self.inner > 1 else " between nodes"
        return f"{name} {where}" + (f", {self.groups} groups" if self.groups > 1 else "")

    def __str__(self) -> str:
        return f"{self.label} of {self.size_bytes} bytes"

    def works_alone(self, ranks_per_node: int) -> bool:
        """Tell whether other groups could be at work beside these."""
        if self.level == INSIDE:
            return self.groups < ranks_per_node // self.group_size
        return max(self.inner, self.groups) < ranks_per_node


@dataclass(frozen=True)
class RankDevice:
    """The device of a rank, timed roughly: what fit-network measures besides its cases."""

    label: ClassVar[str] = "device"
    weight: ClassVar[float] = 12.0  # about as long as so many short messages
    memory_bytes: ClassVar[int] = 0
    needed: ClassVar[bool] = True


@dataclass(frozen=True)
class OverlapCase:
    """A chain of boxings and one of ops, which are timed alone and together.

    The boxings, of long messages or of short ones, are those of all groups of a level at once. Always in
    nn.Graph, which runs plans: eager ops and boxings wait for each other in the order of their calls.
    """

    boxings: CollectiveCase
    weight: ClassVar[float] = 8.0  # about as long as so many short messages
    needed: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return f"ops beside {self.boxings.label}"

    @property
    def short(self) -> bool:
        return self.boxings.size_bytes == _SHORT_BYTES

    @property
    def messages(self) -> float:
        each, _ = coefficients(self.boxings.collective, self.boxings.group_size, 0.0)
        return self.boxings.steps * each

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory its graphs take on each rank: with boxings three, one without."""
        return 4 * self.boxings.memory_bytes

    def __str__(self) -> str:
        return self.label


LinkPart = CollectiveCase | RankDevice | OverlapCase


@dataclass(frozen=True)
class LinkSettings:
    """What to measure and how long. Profiles are made of the first of `modes`."""

    nproc_per_node: int
    nnodes: int = 1
    mode: str = "graph"
    sizes: tuple[int, ...] = SIZES
    collectives: tuple[str, ...] = ALL_COLLECTIVES
    group_sizes: tuple[int, ...] | None = None
    quick: bool = False
    iterations: int = ITERATIONS
    warm_up: int = WARM_UP
    budget_s: float | None = None
    device: bool = True
    kinds: tuple[str, ...] = ()
    """What the nodes are, where not all are alike: all of one kind, or of two."""
    shares: tuple[int, ...] = ()
    """Those of the nodes, or on one node of its ranks, over which gathers are timed."""

    def __post_init__(self) -> None:
        self._check_shares()
        if len(self.kinds) > 2:
            raise AutoDDLError(
                f"kinds: got {', '.join(self.kinds)}; allowed are one, which all nodes are of, or two"
            )
        if len(self.kinds) == 2 and self.nnodes < 2:
            raise AutoDDLError(
                f"kinds: got {', '.join(self.kinds)} on one node; start it on nodes of both"
            )
        possible = {case.group_size for case in self._cases()}
        unknown = set(self.group_sizes or ()) - possible
        if possible and unknown:
            names = ", ".join(map(str, sorted(possible)))
            raise AutoDDLError(f"group sizes: got {min(unknown)}; allowed are {names}")

    def _check_shares(self) -> None:
        """Raise AutoDDLError where shares are not those of nodes or ranks, or nn.Graphs are measured."""
        if not self.shares:
            return
        _, members, *_ = self.shared
        if members == 1:
            raise AutoDDLError("shares: got them for one rank; start two and more")
        cut_of(members, self.shares)
        if self.mode != "eager":
            raise AutoDDLError(
                f"shares: got mode {self.mode}; scripts over shares have eager tensors: --mode eager"
            )

    @property
    def shared(self) -> tuple[str, int, int, int]:
        """Return which groups have the shares: level, group size, inner, groups."""
        if self.nnodes > 1:
            return BETWEEN, self.nnodes, 1, self.nproc_per_node
        return INSIDE, self.nproc_per_node, 1, 1

    @property
    def modes(self) -> tuple[str, ...]:
        return ("graph", "eager") if self.mode == "both" else (self.mode,)

    @property
    def between_kinds(self) -> bool:
        """Tell whether the nodes are of two kinds: then only what joins them is measured."""
        return len(self.kinds) == 2

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the levels of the cluster, outermost first."""
        return (BETWEEN, INSIDE) if self.nnodes > 1 else (INSIDE,)

    @property
    def seconds(self) -> float:
        """Return how long all cases may take."""
        if self.budget_s is not None:
            return self.budget_s
        return (QUICK_BUDGET_S if self.quick else BUDGET_S) * len(self.modes)

    @property
    def passes(self) -> int:
        """Return how often the ranks come back to each case.

        A host may be slow for seconds. Of a case that is measured at once, in a second of a quick run,
        all repetitions are slow then; of one that is measured in passes a third, which the
        estimate of its time nearly stands.
        """
        return _QUICK_PASSES if self.quick else 1

    def cases(self) -> tuple[CollectiveCase, ...]:
        """Return all cases: every collective in every kind of group in every size.

        Kinds of groups: inside a node every divisor of its ranks, all groups at work at once, and for
        the largest proper divisor one group alone as well; between nodes every divisor of the nodes,
        one group alone and one per rank of a node; across, every node with as many ranks of each as
        divide them, in one group. On one node a quick run leaves out the groups that work alone
        although others could. Gathers in groups with shares are by these: padded in place of even ones,
        and grouped.
        """
        chosen = self.group_sizes
        return tuple(c for c in self._cases() if chosen is None or c.group_size in chosen)

    def overlap_cases(self) -> tuple[OverlapCase, ...]:
        """Return every collective over the whole of each level, of long messages and of short ones.

        Those of short ones are over all ranks as well, where a group sends several messages at once.
        None where only eager mode is measured. Pairs are left out: of two ranks that send to each other,
        one waits. A quick run has two collectives.
        """
        if "graph" not in self.modes:
            return ()
        inside = 1 if self.between_kinds else self.nproc_per_node
        long = [(INSIDE, inside, 1, 1), (BETWEEN, self.nnodes, 1, self.nproc_per_node)]
        across = (BETWEEN, self.nnodes * self.nproc_per_node, self.nproc_per_node, 1)
        short = [*long, across] if self.nnodes > 1 and self.nproc_per_node > 1 else long
        names = [name for name in self.collectives if name != SEND_RECEIVE]
        return tuple(
            OverlapCase(
                CollectiveCase("graph", name, level, size, size_bytes, inner, groups, steps)
            )
            for groups_of, size_bytes, steps in (
                (long, _BESIDE_BYTES, _BESIDE_STEPS),
                (short, _SHORT_BYTES, _SHORT_STEPS),
            )
            for level, size, inner, groups in groups_of
            if size > 1
            for name in names[: 2 if self.quick else None]
        )

    def _cases(self) -> Iterator[CollectiveCase]:
        most_steps = _QUICK_STEPS if self.quick else MOST_STEPS
        by_shares = ALL_GATHER, self.shared
        for mode in self.modes:
            for way in (ALL_GATHER, BROADCAST) if self.shares else ():
                for size in self.sizes:
                    level, group_size, inner, groups = self.shared
                    yield CollectiveCase(
                        mode, way, level, group_size, size, inner, groups, most_steps, self.shares
                    )
            for collective in self.collectives:
                kinds = self._pairs() if collective == SEND_RECEIVE else self._groups()
                for level, group_size, inner, groups in kinds:
                    if (
                        self.shares
                        and (collective, (level, group_size, inner, groups)) == by_shares
                    ):
                        continue
                    for size in self.sizes:
                        case = CollectiveCase(
                            mode, collective, level, group_size, size, inner, groups, most_steps
                        )
                        if level == INSIDE and self.between_kinds:
                            continue
                        busy_only = self.quick and self.nnodes == 1
                        if not (busy_only and case.works_alone(self.nproc_per_node)):
                            yield case

    def _groups(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield level, group size, inner, groups."""
        ranks = self.nproc_per_node
        inside = _divisors(ranks)
        yield from ((INSIDE, p, 1, ranks // p) for p in inside)
        yield from ((INSIDE, p, 1, 1) for p in inside[1:2])
        for nodes in _divisors(self.nnodes):
            yield from ((BETWEEN, nodes, 1, groups) for groups in dict.fromkeys((ranks, 1)))
            yield from ((BETWEEN, nodes * p, p, 1) for p in inside)

    def _pairs(self) -> Iterator[tuple[str, int, int, int]]:
        most = {INSIDE: self.nproc_per_node // 2, BETWEEN: self.nproc_per_node}
        for level in reversed(self.levels):
            both = dict.fromkeys((most[level], 1))
            yield from ((level, 2, 1, pairs) for pairs in both if 0 < pairs <= most[level])

    def fingerprint(self) -> dict[str, Any]:
        """Return what partial results must agree in to belong together."""
        values = {key: value for key, value in asdict(self).items() if key not in _FREE}
        try:
            oneflow = metadata.version("oneflow")
        except metadata.PackageNotFoundError:  # `probe_job` says so
            oneflow = "none"
        return {**values, "autoddl": autoddl.__version__, "oneflow": oneflow}


@dataclass(frozen=True)
class LinkTask:
    """What the ranks of one launch are told; `more` launches follow it."""

    settings: LinkSettings
    cases: tuple[CollectiveCase, ...]
    budget_s: float
    device: bool
    more: bool
    overlaps: tuple[OverlapCase, ...] = ()


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


@dataclass(frozen=True)
class OverlapTiming:
    """What a case took, in seconds without what a call takes besides.

    `boxings_s` alone, `ops_s` alone, and `together_s` both, of which the ops take longer; then
    `few_together_s`, of the boxings beside so few ops, `few_ops_s`, that the boxings take longer.
    """

    case: OverlapCase
    repetitions: int
    boxings_s: float
    ops_s: float
    together_s: float
    few_ops_s: float
    few_together_s: float


def _divisors(count: int) -> list[int]:
    """Return the divisors above 1, largest first."""
    return [d for d in range(count, 1, -1) if count % d == 0]
