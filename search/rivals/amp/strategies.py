"""AMP's strategies: degrees of parallelism, samples per micro-batch, the devices of each stage.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.2 and §6.3.
"""

from __future__ import annotations

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


def megatron_stages(nodes: int, per_node: int, tmp: int, dp: int) -> tuple[Domino, ...]:
    """Return the stages in Megatron's placement: ranks in their order, tmp innermost, pp outermost."""
    size = tmp * dp
    return tuple(tuple(range(a, a + size)) for a in range(0, nodes * per_node, size))
