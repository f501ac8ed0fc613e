"""Where a program has what experts cut by hand: linear layers, embeddings, experts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.registry import find
from autoddl.sbp.state import NdSbp
from autoddl.search.problem import Problem

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


class States(NamedTuple):
    """The states in which a layer computes Y = X W, dX = dY Wᵀ and dW = Xᵀ dY."""

    x: NdSbp
    weight: NdSbp
    y: NdSbp
    dy: NdSbp
    dx: NdSbp
    dweight: NdSbp


def linear_layers(program: Program) -> list[Layer]:
    """Return the linear layers, whose weights have rank 2, in the order of the forward pass."""
    return [layer for layer in _layers(program, "matmul") if _rank(program, layer) == 2]


def embeddings(program: Program) -> list[Layer]:
    """Return the embeddings; their tables are (vocabulary, features)."""
    return [layer for layer in _layers(program, "embedding") if _rank(program, layer) == 2]


def expert_layers(program: Program) -> list[Layer]:
    """Return the products of a batch of tokens per expert with weights (experts, in, out)."""
    found = [layer for layer in _layers(program, "matmul") if _rank(program, layer) == 3]
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


def ops_of(problem: Problem) -> list[Op]:
    """Return the ops of a problem, in the order of the program; it may lack some of the program's."""
    return [problem.program.op[node.name] for node in problem.nodes if node.kind == "op"]


def backward_products(problem: Problem) -> list[Product]:
    """Return the contractions of the backward pass that are in a problem."""
    program = problem.program
    return [
        Product(
            op.name, op.outputs[0][0], program.tensor[op.outputs[0][1]].shape,
            tuple([(o, t, parameter_of(program, t)) for o, t in op.inputs]),
        )
        for op in ops_of(problem)
        if op.phase == "backward" and _family(op) == "matmul"
    ]  # fmt: skip


def operand_states(
    program: Program, products: Iterable[Product], layers: Iterable[tuple[Layer, States]]
) -> dict[str, Mapping[str, NdSbp]]:
    """Return the states of operands by op, for the products of layers forward and backward."""
    found: dict[str, Mapping[str, NdSbp]] = {}
    by_weight: dict[str, States] = {}
    by_input: dict[str, list[tuple[tuple[int, ...], States]]] = defaultdict(list)
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


def parameter_of(program: Program, tensor: str) -> str:
    """Return what a tensor is but for its dtype: the parameter in front of casts."""
    op = program.producer.get(tensor)
    while op is not None and op.type in CASTS and len(op.inputs) == 1:
        tensor = op.inputs[0][1]
        op = program.producer.get(tensor)
    return tensor


def contractions(program: Program, phase: str, family: str = "matmul") -> Iterator[Op]:
    """Yield the ops of a phase whose rule is of the family."""
    found: list[int] = []
    for places in program.places.values():
        if _family(program.ops[places[0]]) == family:
            found += places
    for index in sorted(found):
        if program.ops[index].phase == phase:
            yield program.ops[index]


def _family(op: Op) -> str | None:
    rule = find(op.type)
    return None if rule is None else rule.family


def _layers(program: Program, family: str) -> list[Layer]:
    found = []
    for op in contractions(program, "forward", family):
        operands = dict(op.inputs)
        x = next((o for o in _INPUTS if o in operands), None)
        weight = next((o for o in _WEIGHTS if o in operands), None)
        if x is None or weight is None:
            continue
        parameter = parameter_of(program, operands[weight])
        if parameter not in program.parameter:
            continue
        rank = len(program.tensor[parameter].shape)
        turned = family == "matmul" and (op.attr.get("transpose_b") or weight == "weight_0")
        out = rank - 2 if turned else rank - 1
        found.append(Layer(op, x, weight, parameter, out, 2 * rank - 3 - out))
    return found


def _rank(program: Program, layer: Layer) -> int:
    return len(program.tensor[layer.parameter].shape)
