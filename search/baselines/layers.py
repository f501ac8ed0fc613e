"""Where a program has what experts cut by hand: linear layers, embeddings, experts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.registry import find
from autoddl.sbp.state import NdSbp
from autoddl.search.network.cost_network import CostNetwork, Ints

CASTS = ("cast", "amp_white_identity", "amp_black_identity")  # between a parameter and its readers
_INPUTS = ("a_0", "x_0", "indices_0")
_WEIGHTS = ("b_0", "weight_0", "in_0")


class Layer(NamedTuple):
    """A contraction of the forward pass with a parameter.

    `x` and `weight` are the operands' names of op `op`, `parameter` the name of the weight; its dim
    `out` is that of the output features, `fan_in` the one that is contracted (or looked up).
    """

    op: Op
    x: str
    weight: str
    parameter: str
    out: int
    fan_in: int


class LayerStates(NamedTuple):
    """The states in which a layer computes Y = X W, dX = dY Wᵀ and dW = Xᵀ dY."""

    x: NdSbp
    weight: NdSbp
    y: NdSbp
    dy: NdSbp
    dx: NdSbp
    dweight: NdSbp


def linear_layers(program: Program) -> list[Layer]:
    """Return the linear layers, whose weights have rank 2, in the order of the forward pass."""
    return _layers(program, "matmul", 2)


def linear_layers_of(problem: CostNetwork) -> Sequence[Layer]:
    """Return the linear layers of a problem's program; they are looked for once."""
    return problem.derived(_linear_layers)


def _linear_layers(problem: CostNetwork) -> Sequence[Layer]:
    return linear_layers(problem.program)


def embeddings(program: Program) -> list[Layer]:
    """Return the embeddings; their tables are (vocabulary, features)."""
    return _layers(program, "embedding", 2)


def expert_layers(program: Program) -> list[Layer]:
    """Return the products of a batch of tokens per expert with weights (experts, in, out)."""
    found = _layers(program, "matmul", 3)
    return [layer for layer in found if len(operand_shape(program, layer.op, layer.x)) == 3]


def operand_shape(program: Program, op: Op, operand: str) -> tuple[int, ...]:
    """Return the shape of one operand of an op."""
    return program.tensor[next(t for o, t in op.operands if o == operand)].shape


def bias_of(program: Program, layer: Layer) -> str | None:
    """Return the parameter that is added to a layer's output features, by its name."""
    name = layer.parameter.rpartition(".")[0] + ".bias"
    return name if name in program.parameter else None


class Product(NamedTuple):
    """A contraction of the backward pass: its result's operand and shape, and what it reads.

    `reads` are (operand, tensor, the parameter that this is but for its dtype).
    """

    name: str
    out: str
    shape: tuple[int, ...]
    reads: tuple[tuple[str, str, str], ...]


def ops_of(problem: CostNetwork) -> list[Op]:
    """Return the ops of a problem; it may lack some of the program's."""
    ops = problem.variables.op
    return [problem.program.ops[place] for place in ops[ops >= 0].tolist()]


def backward_products(problem: CostNetwork) -> list[Product]:
    """Return the contractions of the backward pass that are in a problem."""
    program = problem.program
    parameter, number = _before_casts(program), program.columns.number
    products = np.intersect1d(contractions(program, "backward"), problem.variables.op)
    return [
        Product(
            op.name, op.outputs[0][0], program.tensor[op.outputs[0][1]].shape,
            tuple([(o, t, program.tensors[parameter[number[t]]].name) for o, t in op.inputs]),
        )
        for op in map(program.ops.__getitem__, products.tolist())
    ]  # fmt: skip


def in_problem(
    problem: CostNetwork, products: Iterable[Product], layers: Sequence[Layer]
) -> list[bool]:
    """Tell of every layer whether `operand_states` says something of ops of a problem by it."""
    ops = frozenset(problem.variables.op.tolist())
    number = problem.program.columns.place
    read = {name for product in products for _, *names in product.reads for name in names}
    return [
        number[layer.op.name] in ops
        or layer.parameter in read
        or dict(layer.op.inputs)[layer.x] in read
        for layer in layers
    ]


def operand_states(
    program: Program, products: Iterable[Product], layers: Iterable[tuple[Layer, LayerStates]]
) -> dict[str, Mapping[str, NdSbp]]:
    """Return the states of operands by op, for the products of layers forward and backward."""
    found: dict[str, Mapping[str, NdSbp]] = {}
    by_weight: dict[str, LayerStates] = {}
    by_input: dict[str, list[tuple[tuple[int, ...], LayerStates]]] = defaultdict(list)
    for layer, states in layers:
        out, _ = layer.op.outputs[0]
        found[layer.op.name] = {layer.x: states.x, layer.weight: states.weight, out: states.y}
        by_weight[layer.parameter] = states
        shape = program.tensor[layer.parameter].shape
        by_input[dict(layer.op.inputs)[layer.x]].append((shape, states))
    for product in products:
        for operand, tensor, parameter in product.reads:
            others = [o for o, _, _ in product.reads if o != operand]
            reads = by_weight.get(parameter)
            if reads is not None:
                found[product.name] = {
                    **dict.fromkeys(others, reads.dy),
                    operand: reads.weight,
                    product.out: reads.dx,
                }
            for shape, states in by_input.get(tensor, ()):
                if product.shape == shape:
                    found[product.name] = {
                        **dict.fromkeys(others, states.dy),
                        operand: states.x,
                        product.out: states.dweight,
                    }
    return found


def contractions(program: Program, phase: str, family: str = "matmul") -> Ints:
    """Return the positions of the ops of a phase whose rule is of the family."""
    columns = program.columns
    rules = [find(name) for name in columns.types]
    types = np.array([rule is not None and rule.family == family for rule in rules], dtype=np.bool_)
    return np.flatnonzero(types[columns.type] & (columns.phase == phase))


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
    columns = program.columns
    ops = contractions(program, "forward", family)
    _, first, kind = np.unique(columns.kind[ops], return_index=True, return_inverse=True)
    operands = [_operands(program.ops[place], family) for place in ops[first].tolist()]
    position = np.array([o[2] if o else 0 for o in operands], dtype=np.int64)[kind]
    weight = columns.inputs.tensor[columns.inputs.begin[ops] + position]
    parameter = _before_casts(program)[weight]
    ranks = np.array([len(shape) for shape, _ in columns.forms], dtype=np.int64)
    found = []
    for index in np.flatnonzero(ranks[columns.form[parameter]] == rank).tolist():
        known, name = operands[kind[index]], program.tensors[parameter[index]].name
        if known is not None and name in program.parameter:
            x, weight_, _, turned = known
            out = rank - 2 if turned else rank - 1
            op = program.ops[ops[index]]
            found.append(Layer(op, x, weight_, name, out, 2 * rank - 3 - out))
    return found


def _operands(op: Op, family: str) -> tuple[str, str, int, bool] | None:
    """Return the operands x and weight of an op, which input that is, and whether it is transposed."""
    names = [name for name, _ in op.inputs]
    x = next((o for o in _INPUTS if o in names), None)
    weight = next((o for o in _WEIGHTS if o in names), None)
    if x is None or weight is None:
        return None
    turned = family == "matmul" and bool(op.attr.get("transpose_b") or weight == "weight_0")
    return x, weight, names.index(weight), turned
