"""The states of operands where experts cut layers by hand, forward and in both gradients' products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autoddl.sbp.layers import Layer, before_casts, contractions, linear_layers
from autoddl.sbp.program import Op
from autoddl.sbp.state import NdSbp
from autoddl.search.baselines.axes import LayerStates
from autoddl.search.network.cost_network import CostNetwork

Product = tuple[Op, tuple[int, ...], Sequence[tuple[str, str]]]
"""A contraction, its result's shape, its operands and the tensors that these are but for dtypes."""


def linear_layers_of(problem: CostNetwork) -> Sequence[Layer]:
    """Return the linear layers that are in a problem."""
    names = set(problem.variables.name)
    return [layer for layer in linear_layers(problem.program) if layer.op.name in names]


def backward_products(problem: CostNetwork) -> Sequence[Product]:
    """Return the contractions of the backward pass that are in a problem."""
    program, before = problem.program, before_casts(problem.program)
    number = program.columns.number
    places = np.intersect1d(contractions(program, "backward", "matmul"), problem.variables.op)
    return [
        (
            op,
            program.tensor[op.outputs[0][1]].shape,
            [(operand, program.tensors[before[number[t]]].name) for operand, t in op.inputs],
        )
        for op in map(program.ops.__getitem__, places.tolist())
    ]


def operand_states(
    problem: CostNetwork, layers: Iterable[tuple[Layer, LayerStates]]
) -> dict[str, Mapping[str, NdSbp]]:
    """Return the states of operands by op, for the products of layers forward and backward.

    A backward product that reads the weight makes dX, one that reads X makes a dW of the weight's shape.
    """
    found, names = dict[str, Mapping[str, NdSbp]](), set(problem.variables.name)
    made_of = defaultdict[str, list[tuple[tuple[int, ...], NdSbp, NdSbp, NdSbp]]](list)
    for layer, states in layers:
        if layer.op.name not in names:
            continue
        out, _ = layer.op.outputs[0]
        found[layer.op.name] = {layer.x: states.x, layer.weight: states.weight, out: states.y}
        made_of[layer.parameter].append((layer.input_shape, states.weight, states.dx, states.dy))
        made_of[layer.input].append((layer.shape, states.x, states.dweight, states.dy))
    for op, made, reads in problem.derived(backward_products):
        out, _ = op.outputs[0]
        for operand, read in reads:
            others = [other for other, _ in reads if other != operand]
            for shape, mine, result, dy in made_of.get(read, ()):
                if made == shape:
                    found[op.name] = {**dict.fromkeys(others, dy), operand: mine, out: result}
    return found
