"""AMP's price of a strategy: a 1F1B pipeline on devices and links of several kinds; and its search.

    T = (gas − 1) · max t_i + Σ t_i + Σ e_i + max s_i

t_i: the layers of stage i for one micro-batch, forward and backward, at the pace of its slowest device,
with the all-reduces of its tensor-parallel groups. e_i: what goes to the next stage, over the slowest of
the links between the tensor-parallel ranks, as the mean over the data-parallel ones. s_i: the all-reduce
of the stage's gradients, 2 (dp − 1) / dp of its parameters over the slowest link of the ring.

GPT of 355.5 million parameters on 16 devices with dp = 16: s = 0.427 s at 50 Gbit/s, 2.133 s at 10.

The paper anneals over its space, runs what is predicted best, and takes the fastest. A space of 449
strategies, which are priced in seconds, is tried whole here.

Source: AMP (Li et al., NeurIPS 2022), eq. 4 and 6, supplement §6.1 to §6.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoddl.sbp.mesh import Cluster
from autoddl.search.rivals.amp.partition import Floats, partition, pipeline_s
from autoddl.search.rivals.amp.strategies import Domino, Strategy, strategies

ITEM_BYTES = 4  # the paper trains in float16, its model counts 32 bits


@dataclass(frozen=True)
class LayerChain:
    """A chain of layers. `seconds` of each per sample by kind of device, forward and backward, uncut.

    `parameters` of each, `passed` elements per sample that it hands on (to the next stage, if one ends
    there), `reduced` elements per sample that tensor parallelism all-reduces in it.
    """

    seconds: Mapping[str, Floats]
    parameters: Floats
    passed: Floats
    reduced: Floats


class PricedStrategy(NamedTuple):
    """A strategy, the bounds of its cut, and what a step takes by AMP's price."""

    step_s: float
    strategy: Strategy
    bounds: tuple[int, ...]


class AmpEstimate:
    """The price of strategies for one model on nodes of as many devices each.

    `inside` and `outside` are the bytes/s of the links in and out of nodes by their kind.
    """

    def __init__(
        self, cluster: Cluster, inside: Mapping[str, float], outside: Mapping[str, float],
        layers: LayerChain, batch: int,
    ) -> None:  # fmt: skip
        self.cluster, self.layers, self.batch = cluster, layers, batch
        self.kinds = [cluster.kind(device) for device in range(cluster.size)]
        nodes = [cluster.unit(device) for device in range(cluster.size)]
        self._byte_s = np.array([
            [
                1 / (inside[kind] if node == its_node else min(outside[kind], outside[its_kind]))
                for its_node, its_kind in zip(nodes, self.kinds, strict=True)
            ]
            for node, kind in zip(nodes, self.kinds, strict=True)
        ])  # fmt: skip

    def search(self, budget: int) -> Sequence[PricedStrategy]:
        """Return so many (tmp, dp, mbs) that are predicted best, each in its best placement."""
        best: dict[tuple[int, int, int], PricedStrategy] = {}
        nodes, per_node = len(self.cluster.unit_sizes), self.cluster.unit_sizes[0]
        for strategy in strategies(nodes, per_node, self.batch):
            bounds = self.cut(strategy)
            found = PricedStrategy(self.step_s(strategy, bounds), strategy, bounds)
            key = strategy.tmp, strategy.dp, strategy.mbs
            best[key] = min(best.get(key, found), found, key=_rank)
        return sorted(best.values(), key=_rank)[:budget]

    def step_s(self, strategy: Strategy, bounds: tuple[int, ...]) -> float:
        """Return T of a strategy with a cut."""
        spans = zip(strategy.stages, pairwise(bounds), strict=True)
        synced_s = max(self.synchronised_s(strategy, stage, *span) for stage, span in spans)
        parts = self.seconds(strategy), self.transfer_s(strategy)
        return pipeline_s(bounds, *parts, strategy.micro_batches(self.batch)) + synced_s

    def cut(self, strategy: Strategy) -> tuple[int, ...]:
        """Return the bounds that AMP's dynamic program chooses; it does not know of s."""
        parts = self.seconds(strategy), self.transfer_s(strategy)
        return partition(*parts, strategy.micro_batches(self.batch))

    def seconds(self, strategy: Strategy) -> Floats:
        """Return the seconds of each layer (column) on each stage (row) for one micro-batch."""
        rows = []
        for stage in strategy.stages:
            kinds = {self.kinds[device] for device in stage}
            pace = np.max([self.layers.seconds[kind] for kind in kinds], axis=0) / strategy.tmp
            moved = _ring(strategy.tmp) * ITEM_BYTES * self.layers.reduced
            rows.append(strategy.mbs * (pace + moved * self._slowest_s(strategy, stage, axis=1)))
        return np.array(rows)

    def transfer_s(self, strategy: Strategy) -> Floats:
        """Return e behind each layer but the last (column) for each stage but the last (row)."""
        size = strategy.mbs * ITEM_BYTES * self.layers.passed[:-1]
        groups = np.array(strategy.stages).reshape(-1, strategy.dp, strategy.tmp)
        slowest_s = self._byte_s[groups[:-1], groups[1:]].max(axis=2)
        return np.outer(slowest_s.mean(axis=1), size)

    def synchronised_s(self, strategy: Strategy, stage: Domino, first: int, last: int) -> float:
        """Return s of a stage with the layers from `first` to before `last`."""
        size = float(self.layers.parameters[first:last].sum()) / strategy.tmp * ITEM_BYTES
        return _ring(strategy.dp) * size * self._slowest_s(strategy, stage, axis=0)

    def _slowest_s(self, strategy: Strategy, stage: Domino, axis: int) -> float:
        """Return the seconds per byte on the slowest link of rings along an axis of dp × tmp."""
        groups = np.array(stage).reshape(strategy.dp, strategy.tmp)
        return float(self._byte_s[groups, np.roll(groups, -1, axis)].max())


def _ring(size: int) -> float:
    """Return how much of the bytes each link of a ring carries in an all-reduce."""
    return 2 * (size - 1) / size


def _rank(found: PricedStrategy) -> tuple[float, tuple[Domino, ...]]:
    """Return the place of a strategy: of those that take as long, stages of near ranks come first."""
    return round(found.step_s, 9), found.strategy.stages
