"""The layers of a program: contractions of the forward pass with a parameter.

y = matmul(cast(x), cast(fc.weight)) is the linear layer of fc.weight with the input x.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.columns import Ints
from autoddl.sbp.rules.registry import find

CASTS = ("cast", "amp_white_identity", "amp_black_identity")  # between a parameter and its readers
_INPUTS = ("a_0", "x_0", "indices_0")
_WEIGHTS = ("b_0", "weight_0", "in_0")


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


def contractions(program: Program, phase: str, *families: str) -> Ints:
    """Return the positions of the ops of a phase whose rule is of one of the families."""
    columns = program.columns
    rules = [find(name) for name in columns.types]
    types = [rule is not None and rule.family in families for rule in rules]
    return np.flatnonzero(np.array(types, dtype=np.bool_)[columns.type] & (columns.phase == phase))


def linear_layers(program: Program) -> list[Layer]:
    """Return the linear layers, whose weights have rank 2, in the order of the forward pass."""
    return _layers(program, "matmul", 2)


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


def before_casts(program: Program) -> Ints:
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
    before, number = before_casts(program), program.columns.number
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
