"""Megatron: linear layers in pairs, the first cut by columns and the second by rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoddl.sbp.layers import Layer, bias_of, linear_layers
from autoddl.sbp.state import B, S
from autoddl.search.baselines.axes import (
    Axes,
    batch,
    columns,
    even,
    layer_states,
    live,
    rows,
    state,
    subsets,
)
from autoddl.search.baselines.data_parallel import batch_cut
from autoddl.search.baselines.flow import Features, flow, network
from autoddl.search.baselines.held_states import HeldStates
from autoddl.search.baselines.operand_states import operand_states
from autoddl.search.network.cost_network import CostNetwork

WHOLE, ROWS, COLUMNS = range(3)
Cuts = tuple[int, ...]  # of all linear layers


def megatron(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the Megatron layouts: tensor parallel on some axes, data parallel on the others.

    A linear layer is cut by rows where its input comes out of layers that are cut by columns, and
    by columns elsewhere, if a layer cut by rows follows; the last one (the head) is cut by columns or
    whole. Weights stay where they are: a row's partial sums, and those of a column's input gradient,
    are reduced. All choices of tensor-parallel axes are tried: the best two-dimensional grid.

    Source: Megatron-LM §3; AutoDDL §5 (best two-dimensional grid).
    """
    axes = live(problem.mesh.cuts)
    return tensor_parallel(problem, subsets(axes, len(axes)))


def tensor_parallel(problem: CostNetwork, choices: Sequence[Axes]) -> Sequence[HeldStates]:
    """Return the Megatron layouts with tensor parallelism on each of these sets of axes."""
    layers = linear_layers(problem.program)
    net = network(problem.program, layers)
    found = dict.fromkeys(_paired(net, head) for head in (False, True))
    by = [list(zip(layers, cuts, strict=True)) for cuts in found if any(cuts)]
    return [_layout(problem, some, cuts) for some in choices for cuts in by]


def _layout(problem: CostNetwork, axes: Axes, cuts: Sequence[tuple[Layer, int]]) -> HeldStates:
    """Return the layout with layers cut over these axes."""
    program, mesh = problem.program, problem.mesh.cuts
    whole, vector = state(mesh, (), B, B), state(mesh, axes, S(0), B)
    held = dict.fromkeys(program.parameter, whole)
    held |= batch_cut(program, mesh, [axis for axis in range(len(mesh)) if axis not in axes])
    layers = []
    for layer, cut in cuts:
        if cut == WHOLE:
            continue
        out, fan_in, features = layer.out, layer.fan_in, layer.features
        by = columns(out, features) if cut == COLUMNS else rows(fan_in, features)
        states = layer_states(mesh, axes, by, batch())
        layers.append((layer, states))
        held[layer.parameter] = even(layer.shape, states.weight, mesh)
        bias = bias_of(program, layer) if cut == COLUMNS else None
        if bias is not None:
            held[bias] = even(program.tensor[bias].shape, vector, mesh)
    return HeldStates(held, operand_states(problem, layers))


def _paired(net: Features, head: bool) -> Cuts:
    """Return the cuts by where the features of each layer's input come from."""
    by_columns = (net.x >= 0).astype(np.int64)
    layers = np.flatnonzero(by_columns)
    while True:
        by_rows, closed = flow(net, by_columns)
        kept = by_columns & closed
        if head and not by_rows[layers[-1:]].any():
            kept[layers[-1:]] = 1
        if ((kept | by_rows) == (by_columns | by_rows)).all():
            cuts = np.where(by_rows, ROWS, np.where(by_columns, COLUMNS, WHOLE))
            return tuple(cuts[layers].tolist())
        by_columns = kept
