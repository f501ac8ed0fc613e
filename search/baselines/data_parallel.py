"""Data parallelism, with the parameters whole on every device or cut as ZeRO and FSDP do."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from autoddl.sbp.program import Program
from autoddl.sbp.shards import local_shape
from autoddl.sbp.shares import Cut
from autoddl.sbp.state import B, NdSbp, S
from autoddl.search.baselines.axes import Axes, even, live, state, subsets
from autoddl.search.baselines.held_states import HeldStates
from autoddl.search.network.cost_network import CostNetwork


def data_parallel(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return data parallelism: the batch cut over every axis that divides it, parameters whole."""
    program, mesh = problem.program, problem.mesh.cuts
    held = dict.fromkeys([p.tensor for p in program.parameters], NdSbp(B for _ in mesh))
    return [HeldStates({**held, **batch_cut(program, mesh, range(len(mesh)))})]


def zero_2(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return data parallelism with parameters, gradients and optimizer states cut over all devices.

    A parameter of the problem shares one state with its optimizer states and its update. Stored cut
    and read whole it is gathered once, for the forward and the backward pass, and its gradient is
    reduce-scattered: that is what ZeRO stage 2 and FSDP's SHARD_GRAD_OP move, and as much as data
    parallelism's all-reduce. The gathered copy is alive between the passes, beside the shard.

    Not to be told apart from it, or not in the problem:
    stage 1 moves the same bytes and cuts the optimizer states alike. It keeps whole gradients
    longer, which here have the state of their parameter.
    Stage 3 (FSDP's FULL_SHARD) frees the parameters after the forward pass and gathers them again:
    half as many bytes more. A tensor is charged once for every state that its readers want, so a
    second gather to the same state has neither a price nor a place in a plan.

    Each parameter is cut along the first dim that all devices divide, or where there is none along
    the one that the most of them do; real systems flatten and pad, which no state says.

    Source: ZeRO (Rajbhandari et al. 2020) §5, §7; FSDP (Zhao et al. 2023) §3.2.
    """
    return _cut(problem, [live(problem.mesh.cuts)])


def hybrid_zero_2(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the best of ZeRO 2 over some mesh axes, with copies of the parameters along the others.

    Usually the shards lie inside a node: gathers stay there, and between nodes only gradients of
    shards are all-reduced. Only meshes of two axes and more have it.

    Source: FSDP §3.2.2 (hybrid sharding, as _HYBRID_SHARD_ZERO2); MiCS (Zhang et al. 2022).
    """
    axes = live(problem.mesh.cuts)
    return _cut(problem, subsets(axes, len(axes) - 1))


def batch_cut(program: Program, mesh: tuple[Cut, ...], axes: Sequence[int]) -> dict[str, NdSbp]:
    """Return the states of the inputs with dim 0 cut by some axes, where they divide it."""
    shapes = {name: program.tensor[name].shape for name in program.inputs}
    cut, whole = state(mesh, tuple(axes), S(0), B), state(mesh, (), B, B)
    return {name: even(shape, cut if shape else whole, mesh) for name, shape in shapes.items()}


def _cut(problem: CostNetwork, choices: Sequence[Axes]) -> list[HeldStates]:
    """Return data parallelism with the parameters cut over each of these sets of axes."""
    program, mesh = problem.program, problem.mesh.cuts
    shapes = {p.tensor: program.tensor[p.tensor].shape for p in program.parameters}
    layouts = []
    for axes in choices:
        shards = {shape: _shard(shape, mesh, axes) for shape in set(shapes.values())}
        if any(s != B for shard in shards.values() for s in shard):
            held = {name: shards[shape] for name, shape in shapes.items()}
            layouts.append(HeldStates(held, start=data_parallel))
    return layouts


def _shard(shape: tuple[int, ...], mesh: tuple[Cut, ...], axes: Axes) -> NdSbp:
    """Return the state in which one dim is cut over as many devices of these axes as can be."""

    def elements(shard: NdSbp) -> float:
        local = local_shape(shape, shard, mesh)
        return inf if local is None else prod(local)

    some = sorted(subsets(axes, len(axes)), key=len, reverse=True)
    cut = [state(mesh, a, S(dim), B) for dim in range(len(shape)) for a in some]
    return min([*cut, state(mesh, (), B, B)], key=elements)
