"""AMP's strategies as plans of ours: stages in Megatron's placement, in the states of experts.

Weights are cut as Megatron does along the axis of tensor parallelism, the batch along the others; without
tensor parallelism a stage is data parallel. A stage of tmp · dp devices in n nodes has the mesh n ×
(devices of a node), whose innermost axis is that of tensor parallelism: tmp 2, dp 8 on 4 × 4 is 4x2x2.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.2 and §6.3; Megatron-LM §3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.stages.staged_assignment import Memories, Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Axis, Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.state import B, S
from autoddl.search.baselines.axes import state
from autoddl.search.baselines.data_parallel import data_parallel
from autoddl.search.baselines.held_states import HeldStates, best
from autoddl.search.baselines.megatron import megatron
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.pipeline_objective import repeated
from experiments.amp.unit_paces import PacedStages, apart, paces, unit_begins
from experiments.lib.oneflow_problems import build

Kinds = tuple[str, ...]


@dataclass(frozen=True)
class Strategy:
    """Degrees of parallelism, samples per micro-batch, and the devices of each stage in their order."""

    tmp: int
    dp: int
    mbs: int
    stages: tuple[tuple[int, ...], ...]

    def micro_batches(self, batch: int) -> int:
        """Return how many micro-batches a batch has on each group (gas)."""
        return batch // (self.dp * self.mbs)


def megatron_stages(devices: int, tmp: int, dp: int) -> tuple[tuple[int, ...], ...]:
    """Return the stages in Megatron's placement: ranks in their order, tmp innermost, pp outermost."""
    size = tmp * dp
    return tuple(tuple(range(a, a + size)) for a in range(0, devices, size))


class StrategyPlans:
    """The plans of strategies for a program on a cluster; stages that are alike share their states.

    `modules` are those with which AMP's units begin, by unit, `units` is how many there are. Where
    `measured` has the seconds of all units by kind of device, forward and backward of one sample, ops of
    a unit take so much longer than the profile has it that they add up to these.
    """

    def __init__(
        self, program: Program, cluster: Cluster, profile: Profile, modules: Mapping[int, str],
        units: int, measured: Mapping[str, Sequence[float]] | None = None,
    ) -> None:  # fmt: skip
        self.cluster, self.profile, self.measured = cluster, profile, measured or {}
        self.batch = program.tensor[program.inputs[0]].shape[0]
        self.memories: Memories = {}
        self._micro = cache(lambda count: micro_batch(program, count))
        self._positions = cache(lambda count: positions(self._micro(count)))
        self._begins = cache(lambda count: unit_begins(self._micro(count), modules, units))
        self._paces = cache(
            lambda kinds, count: paces(
                self._micro(self.batch), self._begins(self.batch), profile.part(kinds),
                np.max([self.measured[kind] for kind in kinds], axis=0), self._begins(count),
            )
        )  # fmt: skip
        self._assigned = cache(self._searched)

    def plan(self, strategy: Strategy, cut: Sequence[int]) -> Staged:
        """Return the stages of a strategy, cut before these units (the first is 0, the last all).

        A stage of units that have no op here takes the next op.
        """
        count, stages = strategy.micro_batches(self.batch), len(strategy.stages)
        parts, all_kinds = [], []
        for ranks in strategy.stages:
            kinds = tuple(sorted({self.cluster.kind(rank) for rank in ranks} - {""}))
            mesh = stage_mesh(ranks, strategy.tmp, self.cluster.unit_sizes[0], self.profile.levels)
            assigned = self._assigned(mesh, strategy.tmp, kinds, count, stages)
            parts.append(StagePart(assigned, ranks))
            all_kinds.append(kinds)
        begins = self._begins(count)
        bounds = apart([begins[unit] for unit in cut[1:-1]], begins[-1])
        return PacedStages(
            parts, self._positions(count), bounds, count, Links(self.profile, self.cluster),
            paces=[self._paces(kinds, count) for kinds in all_kinds] if self.measured else None,
            memories=self.memories,
        )  # fmt: skip

    def _searched(self, mesh: Mesh, tmp: int, kinds: Kinds, count: int, stages: int) -> Assigned:
        problem = build(self._micro(count), mesh, self.profile.part(kinds))
        family = data_parallel if tmp == 1 else _megatron_inside
        whole = (stages, count) == (1, 1)
        found = best(problem if whole else repeated(problem, stages, count), family)
        if found is None:
            raise AutoDDLError(f"Megatron on {mesh}: the program has no layers to cut")
        return Assigned(problem, found)


def stage_mesh(ranks: Sequence[int], tmp: int, per_node: int, levels: Sequence[str]) -> Mesh:
    """Return the mesh of a stage whose tensor-parallel groups lie inside of nodes."""
    nodes = len({rank // per_node for rank in ranks})
    outer, inner = levels[0], levels[-1]
    sizes = [(outer, nodes), (inner, len(ranks) // nodes // tmp), (inner, tmp)]
    return Mesh(tuple(Axis(*pair) for pair in sizes if pair[1] > 1) or (Axis(inner, 1),))


def _megatron_inside(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the layouts of Megatron with tensor parallelism on the innermost axis."""
    mesh, name = problem.mesh.shape, problem.program.inputs[0]
    batch = state(mesh, tuple(range(len(mesh) - 1)), S(0), B)
    return [layout for layout in megatron(problem) if layout.held[name] == batch]
