"""AMP's strategies as plans of ours: parts on the ranks of its dominoes, in the states of experts.

A stage of tmp × dp devices that lie in n nodes has the mesh n × (devices of a node); tensor-parallel
groups inside of a node are the innermost axis, those across nodes the outermost:

    tmp 2, dp 2 on ranks 0 to 3          2x2 in a node, Megatron on the inner axis
    tmp 2, dp 8 on all of 4 × 4          4 nodes x 2 x 2, Megatron on the innermost axis
    tmp 2, dp 4 on two whole nodes       2 nodes x 4, Megatron on the outer axis (a domino that lies)

Weights are cut as Megatron does along that axis, the batch along the others; without tensor
parallelism a stage is data parallel. Where several stages lie across the same nodes their collectives
share the nodes' links, which so many times slower links stand for. A cut is in AMP's units, of which
`modules` tells where they begin in the program; one that is not told begins where the next one does.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.2 and §6.3; Megatron-LM §3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import COMPUTE
from autoddl.perfmodel.profile import Profile
from autoddl.planner.costs.assigned import Assigned
from autoddl.planner.costs.stage_links import Links, Ranks
from autoddl.planner.costs.stage_moves import StagePart
from autoddl.planner.costs.staged_assignment import ONCE, Memories, Spent, Staged
from autoddl.sbp.mesh import Axis, Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import Positions, positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.state import B, S
from autoddl.search.amp.strategies import Domino, Strategy
from autoddl.search.baselines.axes import state
from autoddl.search.baselines.data_parallel import data_parallel
from autoddl.search.baselines.held_states import Family, HeldStates, best
from autoddl.search.baselines.megatron import megatron
from autoddl.search.network.builder import build
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.pipeline_objective import repeated
from experiments.hidup.clusters import scaled

Kinds = tuple[str, ...]


class StageMesh(NamedTuple):
    """The mesh of a stage, its ranks in the order of that, and the axis of its tensor parallelism."""

    mesh: Mesh
    ranks: Ranks
    tensor: int | None


class StrategyPlans:
    """The plans of strategies for a program on a cluster; stages that are alike share their states.

    `modules` are those with which AMP's units begin, by unit, `units` is how many there are. Where
    `timed` is given passes of ops outside of modules whose names begin so take no time.
    """

    def __init__(
        self, program: Program, cluster: Cluster, profile: Profile, modules: Mapping[int, str],
        units: int, timed: str = "",
    ) -> None:  # fmt: skip
        self.cluster, self.profile, self.timed = cluster, profile, timed
        self.begins = unit_begins(program, modules, units)
        self.batch = program.tensor[program.inputs[0]].shape[0]
        self.memories: Memories = {}
        self._micro = cache(lambda count: micro_batch(program, count))
        self._positions = cache(self._found)
        self._assigned = cache(self._searched)

    def plan(self, strategy: Strategy, cut: Sequence[int], *, again: bool = False) -> Staged:
        """Return the stages of a strategy, cut before these units (the first is 0, the last all).

        With `again` all but the last make their forward results again for the backward pass. A stage
        of units that have no op here takes the next op.
        """
        count, stages = strategy.micro_batches(self.batch), len(strategy.stages)
        per_node = self.cluster.unit_size
        sharing = stages_across(strategy.stages, per_node)
        parts = []
        for domino in strategy.stages:
            mesh, ranks, tensor = stage_mesh(domino, strategy.tmp, per_node, self.profile.levels)
            kinds = tuple(sorted({self.cluster.kind(rank) for rank in ranks} - {""}))
            most = max(sharing[rank // per_node] for rank in ranks)
            shared = most if len({rank // per_node for rank in ranks}) > 1 else 1
            assigned = self._assigned(mesh, tensor, kinds, shared, count, stages)
            parts.append(StagePart(assigned, ranks))
        bounds = [self.begins[unit] for unit in cut[1:-1]]
        for place, before in enumerate((0, *bounds[:-1])):
            bounds[place] = max(bounds[place], before + 1)
        return TimedStages(
            parts, self._positions(count), bounds, count, Links(self.profile, self.cluster),
            timed=self.timed, recomputed=range(stages - 1) if again else (), memories=self.memories,
        )  # fmt: skip

    def _found(self, count: int) -> Positions:
        return positions(self._micro(count))

    def _searched(
        self, mesh: Mesh, tensor: int | None, kinds: Kinds, shared: int, count: int, stages: int
    ) -> Assigned:
        profile = scaled(self.profile, 1 / shared).part(kinds)
        problem = build(self._micro(count), mesh, profile, any_batch=True)
        family = data_parallel if tensor is None else _megatron_on(tensor)
        found = best(repeated(problem, stages, count), family)
        if found is None:
            raise AutoDDLError(f"Megatron on {mesh}: the program has no layers to cut")
        return Assigned(problem, found)


class TimedStages(Staged):
    """Stages of which only ops of modules whose names begin with `timed` take time in a pass."""

    def __init__(self, *arguments: Any, timed: str = "", **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.timed = timed

    @cached_property
    def planned(self) -> list[Spent]:
        """Return what ops and boxings take."""
        return [
            item._replace(seconds=0.0) if self._free(item) else item for item in super().planned
        ]

    def _free(self, item: Spent) -> bool:
        name = item.of[0]
        if item.stream != COMPUTE or item.phase == ONCE or name not in self.program.op:
            return False
        return not self.program.op[name].module.startswith(self.timed)


def stage_mesh(domino: Domino, tmp: int, per_node: int, levels: Sequence[str]) -> StageMesh:
    """Return how the devices of a domino are a mesh; those of a node all along it, node by node."""
    nodes = len({rank // per_node for rank in domino})
    inside = len(domino) // nodes
    across = len({rank // per_node for rank in domino[:tmp]}) > 1
    outer, inner = levels[0], levels[-1]
    sizes = [(outer, nodes), (inner, inside)]
    if not across:
        sizes = [(outer, nodes), (inner, inside // tmp), (inner, tmp)]
    kept = [Axis(*pair) for pair in sizes if pair[1] > 1] or [Axis(inner, 1)]
    tensor = None if tmp == 1 else 0 if across else len(kept) - 1
    return StageMesh(Mesh(tuple(kept)), tuple(sorted(domino)), tensor)


def stages_across(stages: Sequence[Domino], per_node: int) -> Counter[int]:
    """Return by node how many stages lie in it and in others."""
    touched = [{rank // per_node for rank in domino} for domino in stages]
    return Counter(node for nodes in touched if len(nodes) > 1 for node in nodes)


def unit_begins(program: Program, modules: Mapping[int, str], units: int) -> list[int]:
    """Return the positions of the forward pass at which units begin, and behind them its end.

    A unit begins with the first op of its module, or of one in that, behind the begin of the one before.

    Raises:
        AutoDDLError: a module has no op there.
    """
    forward = [op.module for op in program.ops if op.phase == "forward"]
    found, place = {0: 0}, 0
    for unit, module in sorted(modules.items()):
        inside = f"{module}."
        while place < len(forward) and not (
            forward[place] == module or (module and forward[place].startswith(inside))
        ):
            place += 1
        if place == len(forward):
            raise AutoDDLError(f"unit {unit}: no op of module {module!r} behind unit {unit - 1}")
        found[unit] = place
        place += 1
    begins = [len(forward)]
    for unit in reversed(range(units)):
        begins.append(found.get(unit, begins[-1]))
    return begins[::-1]


@cache
def _megatron_on(tensor: int) -> Family:
    """Return the layouts of Megatron with tensor parallelism on one axis, data parallel on the others."""

    def family(problem: CostNetwork) -> Sequence[HeldStates]:
        mesh, name = problem.mesh.shape, problem.program.inputs[0]
        others = tuple(axis for axis in range(len(mesh)) if axis != tensor)
        batch = state(mesh, others, S(0), B)
        return [layout for layout in megatron(problem) if layout.held[name] == batch]

    return family
