"""OneFlow's global tensors in the terms of plans: devices as meshes, SBP as states, shards of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import oneflow as flow

from autoddl.engine.oneflow.capture import abstract
from autoddl.engine.oneflow.capture.shadow import modules, named_variables, replace_variables
from autoddl.errors import AutoDDLError
from autoddl.plan.value import PlanValue
from autoddl.sbp.shards import shard_slices
from autoddl.sbp.state import B, NdSbp, S


class Held(NamedTuple):
    """The states of a graph's variables on the devices of a step that runs already, by name."""

    mesh: tuple[int, ...]
    states: dict[str, NdSbp]


def placements(plan: PlanValue) -> list[Any]:
    """Return the devices of every part, as global tensors want them."""
    return [
        flow.placement(plan.device, _nested(part.ranks, part.mesh.shape)) for part in plan.parts
    ]


def _nested(ranks: Sequence[int], shape: Sequence[int]) -> Any:
    if len(shape) == 1:
        return list(ranks)
    step = len(ranks) // shape[0]
    return [_nested(ranks[i : i + step], shape[1:]) for i in range(0, len(ranks), step)]


def sbp_of(state: NdSbp) -> list[Any]:
    kinds = {"B": flow.sbp.broadcast, "P": flow.sbp.partial_sum}
    return [flow.sbp.split(s.dim) if s.is_split else kinds[s.kind] for s in state]


def state_of(tensor: flow.Tensor) -> NdSbp:
    """Return the state of a global tensor that is no sum."""
    splits = [flow.sbp.split(dim) for dim in range(len(tensor.shape))]
    return NdSbp(B if each == flow.sbp.broadcast else S(splits.index(each)) for each in tensor.sbp)


def mesh_shape(placement: Any) -> tuple[int, ...]:
    return tuple(np.array(placement.ranks).shape)


def coordinate(placement: Any) -> tuple[int, ...] | None:
    """Return where this rank is among the devices of a placement."""
    found = np.argwhere(np.array(placement.ranks) == flow.env.get_rank())
    return tuple(found[0].tolist()) if len(found) else None


def shard(tensor: flow.Tensor, placement: Any, state: NdSbp) -> flow.Tensor:
    """Return a tensor, the same whole one on all ranks or a global one, on devices in a state.

    Of a whole one each rank keeps a copy of its shard, without any communication. A stand-in's values are
    drawn, those of this rank's shard only; it is zeros where nothing tells them.
    """
    sbp = sbp_of(state)
    if tensor.is_global:
        if tensor.placement == placement and list(tensor.sbp) == sbp:
            return tensor
        return tensor.to_global(placement=placement, sbp=sbp)
    here = coordinate(placement)
    if here is not None:
        slices = shard_slices(tuple(tensor.shape), state, mesh_shape(placement), here)
        if abstract.is_stand_in(tensor):
            tensor = abstract.drawn(tensor, slices)
        elif any(each.is_split for each in state):
            tensor = tensor[slices].clone()  # no view, which would keep the whole
    return tensor.contiguous().to_global(placement=placement, sbp=sbp)


def whole_of(tensor: flow.Tensor) -> flow.Tensor:
    """Return a global tensor as a local one of all its values, on every rank. All have to call it."""
    ranks = list(range(flow.env.get_world_size()))
    everywhere = flow.placement(tensor.placement.type, ranks)
    return tensor.to_global(placement=everywhere, sbp=[flow.sbp.broadcast]).to_local()


def make_global(
    graph: flow.nn.Graph, place: Callable[[str], Any], state: Callable[[str], NdSbp]
) -> None:
    """Replace the graph's parameters and buffers by global ones and tell its optimizers.

    `place` and `state` map the name of each to its devices and its state there.
    """

    def moved(name: str, tensor: flow.Tensor) -> flow.Tensor:
        with flow.no_grad():
            found = shard(tensor, place(name), state(name))
            return tensor if found is tensor else found.detach()

    replace_variables(graph, moved)


def refuse_local_inputs(graph: flow.nn.Graph) -> None:
    """Let the graph's modules, when they are called eagerly with local tensors, say what to do.

    OneFlow would complain about inconsistent arguments of an op somewhere inside. Graphs call no hooks.
    """
    for root in modules(graph):
        for module in root.modules():
            own = any(True for _ in module.parameters())
            if own and _check not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_check)


def _check(module: flow.nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse local tensors where a parameter is global."""
    if flow._oneflow_internal.lazy_mode.is_enabled():
        return
    local = any(isinstance(each, flow.Tensor) and not each.is_global for each in inputs)
    if local and next(module.parameters()).is_global:
        raise AutoDDLError(
            f"{type(module).__name__}: called with a local tensor, and a plan has spread its parameters "
            "over the ranks; call step.evaluate(model, x) on all of them, which takes local tensors"
        )


def held(graph: Any) -> Held | None:
    """Return the states that the variables of a graph without an optimizer have in another's step.

    Raises:
        AutoDDLError: they are on the stages of a plan, or on different meshes.
    """
    if not isinstance(graph, flow.nn.Graph) or graph.config.training:
        return None  # whoever trains may have them in other states
    found = {name: tensor for name, tensor in named_variables(graph) if tensor.is_global}
    if not found:
        return None
    first = next(iter(found.values())).placement
    everywhere = np.array(first.ranks).size == flow.env.get_world_size()
    if not everywhere or any(tensor.placement != first for tensor in found.values()):
        raise AutoDDLError(
            f"graph {graph.name}: its parameters are on the stages of another plan; save a checkpoint, "
            "and evaluate that in a job without stages"
        )
    return Held(mesh_shape(first), {name: state_of(tensor) for name, tensor in found.items()})
