"""AMP's price of a strategy: a 1F1B pipeline on devices and links of several kinds.

    T = (gas − 1) · max t_i + Σ t_i + Σ e_i + max s_i

t_i: the layers of stage i for one micro-batch, forward and backward, at the pace of its slowest device,
with the all-reduces of its tensor-parallel groups. e_i: what goes to the next stage, over the slowest of
the links between the tensor-parallel ranks, as the mean over the data-parallel ones. s_i: the all-reduce
of the stage's gradients, 2 (dp − 1) / dp of its parameters over the slowest link of the ring.

GPT of 355.5 million parameters on 16 devices with dp = 16: s = 0.427 s at 50 Gbit/s, 2.133 s at 10.

Source: AMP (Li et al., NeurIPS 2022), eq. 4 and 6, supplement §6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.search.rivals.amp.strategies import Domino, Strategy

Floats = npt.NDArray[np.float64]
ITEM_BYTES = 4  # the paper trains in float16, its model counts 32 bits


@dataclass(frozen=True)
class UnlikeNodes:
    """Nodes of `per_node` devices each: their kinds, and bytes/s inside and out of a node by kind."""

    kinds: tuple[str, ...]
    per_node: int
    inside: Mapping[str, float]
    outside: Mapping[str, float]

    def __post_init__(self) -> None:
        for kind in self.kinds:
            for name, rates in (("inside", self.inside), ("outside", self.outside)):
                if not rates.get(kind, 0.0) > 0:
                    raise AutoDDLError(
                        f"nodes of kind {kind!r}: no {name} rate; give bytes/s above 0"
                    )

    def kind(self, device: int) -> str:
        """Return the kind of a device."""
        return self.kinds[device // self.per_node]

    def link(self, one: int, other: int) -> float:
        """Return the bytes/s between two devices: of the slower side."""
        if one // self.per_node == other // self.per_node:
            return self.inside[self.kind(one)]
        return min(self.outside[self.kind(one)], self.outside[self.kind(other)])


@dataclass(frozen=True)
class LayerChain:
    """A chain of layers. `seconds` of each per sample by kind of device, forward and backward, uncut.

    `parameters` of each, `passed` elements per sample that it hands on (to the next stage, if one ends
    there), `reduced` elements per sample that tensor parallelism all-reduces in it.
    """

    seconds: Mapping[str, tuple[float, ...]]
    parameters: tuple[float, ...]
    passed: tuple[float, ...]
    reduced: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.parameters), len(self.passed), len(self.reduced)}
        lengths |= {len(layers) for layers in self.seconds.values()}
        if len(lengths) != 1:
            raise AutoDDLError(
                f"layers: counts of {sorted(lengths)}; give one number for each layer"
            )


class AmpEstimate:
    """The price of strategies for one model on some nodes; `step_s` is pure."""

    def __init__(self, nodes: UnlikeNodes, layers: LayerChain, batch: int) -> None:
        self.nodes, self.layers, self.batch = nodes, layers, batch

    def step_s(self, strategy: Strategy, bounds: tuple[int, ...]) -> float:
        """Return T of a strategy with a cut."""
        spans = list(zip(strategy.stages, pairwise(bounds), strict=True))
        synced_s = max(self.synchronised_s(strategy, stage, *span) for stage, span in spans)
        rows, sent = self.seconds(strategy), self.transfer_s(strategy)
        stages = [float(row[a:b].sum()) for row, (_, (a, b)) in zip(rows, spans, strict=True)]
        moved = sum(float(row[b - 1]) for row, b in zip(sent, bounds[1:-1], strict=True))
        count = strategy.micro_batches(self.batch)
        return (count - 1) * max(stages) + sum(stages) + moved + synced_s

    def seconds(self, strategy: Strategy) -> Floats:
        """Return the seconds of each layer (column) on each stage (row) for one micro-batch."""
        return np.array([self._stage_s(strategy, stage) for stage in strategy.stages])

    def transfer_s(self, strategy: Strategy) -> Floats:
        """Return e behind each layer but the last (column) for each stage but the last (row)."""
        rows = [
            strategy.mbs * ITEM_BYTES * self._passed[:-1] * self._seconds_per_byte(strategy, *pair)
            for pair in pairwise(strategy.stages)
        ]
        return np.array(rows).reshape(len(strategy.stages) - 1, len(self._passed) - 1)

    def synchronised_s(self, strategy: Strategy, stage: Domino, first: int, last: int) -> float:
        """Return s of a stage with the layers from `first` to before `last`."""
        if strategy.dp == 1:
            return 0.0
        size = sum(self.layers.parameters[first:last]) / strategy.tmp * ITEM_BYTES
        slowest = min(
            self.nodes.link(one, other)
            for rank in range(strategy.tmp)
            for ring in [stage[rank :: strategy.tmp]]
            for one, other in zip(ring, (*ring[1:], ring[0]), strict=True)
        )
        return 2 * (strategy.dp - 1) / strategy.dp * size / slowest

    @cached_property
    def _passed(self) -> Floats:
        return np.array(self.layers.passed, dtype=np.float64)

    def _stage_s(self, strategy: Strategy, stage: Domino) -> Floats:
        tmp, per_sample = strategy.tmp, self.layers.seconds
        paces = [np.array(per_sample[kind]) for kind in {self.nodes.kind(d) for d in stage}]
        found: Floats = np.maximum.reduce(paces) / tmp
        if tmp > 1:
            groups = [stage[a : a + tmp] for a in range(0, len(stage), tmp)]
            slowest = min(
                self.nodes.link(one, other)
                for group in groups
                for one, other in zip(group, (*group[1:], group[0]), strict=True)
            )
            moved = 2 * (tmp - 1) / tmp * ITEM_BYTES * np.array(self.layers.reduced)
            found = found + moved / slowest
        return strategy.mbs * found

    def _seconds_per_byte(self, strategy: Strategy, stage: Domino, after: Domino) -> float:
        tmp, dp = strategy.tmp, strategy.dp
        slowest = [
            min(self.nodes.link(stage[r * tmp + t], after[r * tmp + t]) for t in range(tmp))
            for r in range(dp)
        ]
        return sum(1 / rate for rate in slowest) / dp
