"""Expert parallelism: experts on different devices, tokens sent to them and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import B, NdSbp, P, S, Sbp
from autoddl.search.baselines.data_parallel import data_parallel
from autoddl.search.baselines.held_states import HeldStates
from autoddl.search.baselines.layers import (
    LayerStates,
    backward_products,
    expert_layers,
    linear_layers,
    operand_states,
)
from autoddl.search.network.cost_network import CostNetwork


def expert_parallel(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the layouts with experts cut over some axes, and data parallelism for all else.

    Experts are parameters (experts, in, out) that batched products of (experts, tokens, in) read.
    Their weights stay where they are; tokens, which data parallelism cuts in the batch, are sent to
    their experts by all-to-all, and so are the results and both gradients. On axes that do not
    cut the experts the tokens of an expert stay cut, and its gradient is all-reduced. All choices of
    axes whose devices divide the experts are tried; without experts there is none.

    Source: GShard (Lepikhin et al. 2021) §3; Switch Transformers (Fedus et al. 2022) §5.
    """
    program, mesh = problem.program, problem.mesh.shape
    layers = expert_layers(program)
    live = [axis for axis, size in enumerate(mesh) if size > 1]
    grids = [some for n in range(1, len(live) + 1) for some in itertools.combinations(live, n)]
    (whole,) = data_parallel(problem)
    whole_weights = _states(mesh, (), S(0))
    others = [(a, whole_weights) for a in linear_layers(program)] if layers else []
    layouts = []
    for axes in grids if layers else ():
        weights = {layer.parameter: _state(mesh, axes, S(0), B) for layer in layers}
        if all(local_shape(program.tensor[w].shape, s, mesh) for w, s in weights.items()):
            experts = [(a, _states(mesh, axes, S(1))) for a in layers]
            backward = backward_products(problem)
            operands = operand_states(program, backward, [*others, *experts])
            layouts.append(HeldStates({**whole.held, **weights}, operands))
    return layouts


def _states(mesh: Sequence[int], axes: Sequence[int], cut: Sbp) -> LayerStates:
    """Return the states of products whose weights are cut by `axes` and whose tokens by the others."""
    tokens = _state(mesh, axes, S(0), cut)
    return LayerStates(
        x=tokens,
        weight=_state(mesh, axes, S(0), B),
        y=tokens,
        dy=tokens,
        dx=tokens,
        dweight=_state(mesh, axes, S(0), P),
    )


def _state(mesh: Sequence[int], axes: Sequence[int], experts: Sbp, others: Sbp) -> NdSbp:
    """Return a state by what it is on the axes that cut the experts and on the others."""
    return NdSbp(
        B if size == 1 else experts if axis in axes else others for axis, size in enumerate(mesh)
    )
