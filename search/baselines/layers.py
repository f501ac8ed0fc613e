"""Where a program has what experts cut by hand: linear layers, embeddings, experts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autoddl.sbp.program import Op, Program
from autoddl.sbp.state import NdSbp
from autoddl.search.baselines.axes import LayerStates
from autoddl.search.heuristics.cells import contractions
from autoddl.search.network.cost_network import CostNetwork, Ints

CASTS = ("cast", "amp_white_identity", "amp_black_identity")  # between a parameter and its readers
_INPUTS = ("a_0", "x_0", "indices_0")
_WEIGHTS = ("b_0", "weight_0", "in_0")
Product = tuple[Op, tuple[int, ...], Sequence[tuple[str, str]]]
"""A contraction, its result's shape, its operands and the tensors that these are but for dtypes."""


class Layer(NamedTuple):
    """A contraction of the forward pass with a parameter.

    `x` and `weight` are the operands' names of op `op`, `input` and `parameter` the tensors that these
    are but for their dtypes. The weight has this `shape`; its dim `out` is that of the output features,
    `fan_in` the one that is contracted (or looked up). Of the output `features` is that dim.
    """

    op: Op
    x: str
    weight: str
    input: str
    input_shape: tuple[int, ...]
    parameter: str
    shape: tuple[int, ...]
    out: int
    fan_in: int
    features: int


def linear_layers(program: Program) -> list[Layer]:
    """Return the linear layers, whose weights have rank 2, in the order of the forward pass."""
    return _layers(program, "matmul", 2)


def linear_layers_of(problem: CostNetwork) -> Sequence[Layer]:
    """Return the linear layers that are in a problem."""
    names = set(problem.variables.name)
    return [layer for layer in linear_layers(problem.program) if layer.op.name in names]


def embeddings(program: Program) -> list[Layer]:
    """Return the embeddings; their tables are (vocabulary, features)."""
    return _layers(program, "embedding", 2)


def expert_layers(program: Program) -> list[Layer]:
    """Return the products of a batch of tokens per expert with weights (experts, in, out)."""
    found = _layers(program, "matmul", 3)
    return [layer for layer in found if len(layer.input_shape) == 3]


def bias_of(program: Program, layer: Layer) -> str | None:
    """Return the parameter that is added to a layer's output features, by its name."""
    name = layer.parameter.rpartition(".")[0] + ".bias"
    return name if name in program.parameter else None


def backward_products(problem: CostNetwork) -> Sequence[Product]:
    """Return the contractions of the backward pass that are in a problem."""
    program, before = problem.program, _before_casts(problem.program)
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


def _before_casts(program: Program) -> Ints:
    """Return what each tensor is but for its dtype: the one in front of casts, by number."""
    columns = program.columns
    inputs, outputs = columns.inputs, columns.outputs
    types = np.array([name in CASTS for name in columns.types], dtype=np.bool_)
    casts = types[columns.type] & (np.diff(inputs.begin) == 1)
    made = casts[outputs.op]
    found = np.arange(len(program.tensors))
    found[outputs.tensor[made]] = inputs.tensor[inputs.begin[outputs.op[made]]]
    while True:
        further = found[found]
        if (further == found).all():
            return found
        found = further


def _layers(program: Program, family: str, rank: int) -> list[Layer]:
    """Return the contractions of a family in the forward pass, with parameters of that rank."""
    before, number = _before_casts(program), program.columns.number
    found = []
    for place in contractions(program, "forward", family).tolist():
        op = program.ops[place]
        read = {o: program.tensors[before[number[t]]] for o, t in op.inputs}
        x = next((o for o in _INPUTS if o in read), None)
        weight = next((o for o in _WEIGHTS if o in read), None)
        if x is None or weight is None:
            continue
        parameter, y = read[weight], program.tensor[op.outputs[0][1]]
        if len(parameter.shape) == rank and parameter.name in program.parameter:
            turned = family == "matmul" and (op.attr.get("transpose_b") or weight == "weight_0")
            out = rank - 2 if turned else rank - 1
            found.append(
                Layer(
                    op, x, weight, read[x].name, read[x].shape, parameter.name, parameter.shape,
                    out, 2 * rank - 3 - out, len(y.shape) - 1,
                )
            )  # fmt: skip
    return found
