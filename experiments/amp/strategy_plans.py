"""AMP's strategies as plans of ours: stages on the ranks of its dominoes, in the states of experts.

Weights are cut as Megatron does along the axis of tensor parallelism, the batch along the others; without
tensor parallelism a stage is data parallel. A stage of tmp · dp devices in n nodes has the mesh n ×
(devices of a node), whose innermost axis is that of tensor parallelism, or, where its groups lie across
nodes, the outermost: tmp 2, dp 8 on 4 × 4 is 4x2x2. Where several stages lie across the same nodes their
collectives share the nodes' links, which so many times slower links stand for.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.2 and §6.3; Megatron-LM §3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial

import numpy as np
from msgspec import structs

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
from autoddl.search.rivals.amp.strategies import Domino, Strategy
from experiments.amp.unit_paces import Floats, PacedStages, apart, paces, unit_begins, unit_seconds
from experiments.lib.oneflow_problems import build

Kinds = tuple[str, ...]


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
        per_node = self.cluster.unit_sizes[0]
        nodes = [frozenset(rank // per_node for rank in domino) for domino in strategy.stages]
        across = Counter(node for some in nodes if len(some) > 1 for node in some)
        parts, all_kinds = [], []
        for domino, some in zip(strategy.stages, nodes, strict=True):
            kinds = tuple(sorted({self.cluster.kind(rank) for rank in domino} - {""}))
            mesh, tensor = stage_mesh(domino, strategy.tmp, per_node, self.profile.levels)
            shared = max(across[node] for node in some) if len(some) > 1 else 1
            assigned = self._assigned(mesh, tensor, kinds, shared, count, stages)
            parts.append(StagePart(assigned, tuple(sorted(domino))))
            all_kinds.append(kinds)
        begins = self._begins(count)
        bounds = apart([begins[unit] for unit in cut[1:-1]], begins[-1])
        return PacedStages(
            parts, self._positions(count), bounds, count, Links(self.profile, self.cluster),
            paces=[self._paces(kinds, count) for kinds in all_kinds] if self.measured else None,
            memories=self.memories,
        )  # fmt: skip

    def unit_s(self) -> Mapping[str, Floats]:
        """Return by kind the seconds of units for a sample, forward and backward, by the profile."""
        sample, begins = self._micro(self.batch), self._begins(self.batch)
        kinds = dict.fromkeys(self.cluster.kinds)
        return {kind: unit_seconds(sample, begins, self.profile.part((kind,))) for kind in kinds}

    def _searched(
        self, mesh: Mesh, tensor: int | None, kinds: Kinds, shared: int, count: int, stages: int
    ) -> Assigned:
        profile = _with_shared_links(self.profile, shared).part(kinds)
        problem = build(self._micro(count), mesh, profile)
        family = data_parallel if tensor is None else partial(_megatron_on, tensor)
        whole = (stages, count) == (1, 1)
        found = best(problem if whole else repeated(problem, stages, count), family)
        if found is None:
            raise AutoDDLError(f"Megatron on {mesh}: the program has no layers to cut")
        return Assigned(problem, found)


def stage_mesh(
    domino: Domino, tmp: int, per_node: int, levels: Sequence[str]
) -> tuple[Mesh, int | None]:
    """Return the mesh of a stage, for its ranks in order, and its axis of tensor parallelism."""
    nodes = len({rank // per_node for rank in domino})
    inside, lies = len(domino) // nodes, len({rank // per_node for rank in domino[:tmp]}) > 1
    outer, inner = levels[0], levels[-1]
    sizes = [(inner, inside)] if lies else [(inner, inside // tmp), (inner, tmp)]
    axes = [Axis(*pair) for pair in [(outer, nodes), *sizes] if pair[1] > 1] or [Axis(inner, 1)]
    return Mesh(tuple(axes)), None if tmp == 1 else 0 if lies else len(axes) - 1


def _with_shared_links(profile: Profile, stages: int) -> Profile:
    """Return the profile whose links between nodes so many stages share."""
    links = [
        structs.replace(link, beta_s_per_byte=link.beta_s_per_byte * stages)
        if link.level == profile.levels[0]
        else link
        for link in profile.links
    ]
    return profile if stages == 1 else structs.replace(profile, links=tuple(links))


def _megatron_on(tensor: int, problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the layouts of Megatron with tensor parallelism on one axis, data parallel on others."""
    mesh, name = problem.mesh.shape, problem.program.inputs[0]
    others = tuple(axis for axis in range(len(mesh)) if axis != tensor)
    batch = state(mesh, others, S(0), B)
    return [layout for layout in megatron(problem) if layout.held[name] == batch]
