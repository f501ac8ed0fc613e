"""What a name that a user asks about stands for: a module, an op or a tensor, or the nearest of these."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from autoddl.errors import AutoDDLError, shown
from autoddl.explain.layer_rows import main_ops, modules_of
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import TENSOR, CostNetwork

MOST_OPS = 3  # of a module that is asked about


class Asked(NamedTuple):
    """A variable of a problem by kind and name, and the operand and tensor that are meant of it."""

    kind: str
    name: str
    operand: str
    tensor: str


def asked_for(problem: CostNetwork, name: str) -> Sequence[Asked]:
    """Return what a name stands for: the main ops of a module, most work first, or one op or tensor.

    Raises:
        AutoDDLError: there is no such thing; names the nearest.
    """
    program, modules = problem.program, modules_of(problem.program)
    if name in modules:
        return [_op(program, op.name) for op in main_ops(program, modules[name])[:MOST_OPS]]
    if name in program.op and name not in {p.update for p in program.parameters}:
        return [_op(program, name)]
    if name in program.tensor:
        return [_tensor(problem, name)]
    inside = [module for module in modules if module.startswith(f"{name}.")]
    names = [*modules, *(p.tensor for p in program.parameters), *program.inputs]
    near = inside[:3] or get_close_matches(name, names, 3, 0.0)
    what = "is a module without ops of its own" if inside else "is no module, op or tensor"
    raise AutoDDLError(
        f"explain: {shown(name, 100)} {what} of the program; {'inside it' if inside else 'nearest'} are "
        f"{', '.join(shown(each, 60) for each in near)}"
    )


def _op(program: Program, name: str, tensor: str | None = None) -> Asked:
    op = program.op[name]
    operands = {t: o for o, t in reversed(op.operands)}
    sizes = {t: program.columns.size_bytes[program.columns.number[t]] for t in operands}
    own = [t for _, t in op.outputs or op.inputs]
    tensor = tensor or max(own, key=sizes.__getitem__)
    return Asked("op", name, operands[tensor], tensor)


def _tensor(problem: CostNetwork, name: str) -> Asked:
    program = problem.program
    if name in program.producer:
        return _op(program, program.producer[name].name, name)
    if name in problem.written:
        return Asked("op", *problem.written[name], name)
    if name in program.inputs:
        return Asked("input", name, TENSOR, name)
    for parameter in program.parameters:
        if name in (parameter.tensor, *parameter.states):
            return Asked("parameter", parameter.tensor, TENSOR, name)
    raise AutoDDLError(f"explain: tensor {shown(name, 100)} has no state that could be chosen")
