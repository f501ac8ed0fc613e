"""What a template is: how an op type is written in Python, and what the template sees of an op.

Each dialect has a table of them by op type. Users add templates of their own with `register_template`:
whatever a function of the engine computes from an op's inputs alone can be written.

Example: "relu" is Template(lambda op: call("F.relu", op.args["in_0"])), which writes F.relu(x).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoddl.codegen.source.expression import Expr, number
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op
from autoddl.sbp.state import NdSbp


@dataclass(frozen=True)
class ScriptOp:
    """What a template sees: the op, its operands' texts, shapes, and the output that is wanted.

    `args` maps inputs ("in_0") to texts, `shape` all operands to logical shapes; `output` is the
    operand that is written, of `dtype`; `states` are those of all operands. What has no input is made on
    `placement`.
    """

    op: Op
    args: Mapping[str, Expr]
    shape: Mapping[str, tuple[int, ...]]
    output: str
    dtype: str
    states: Mapping[str, NdSbp]
    placement: Expr

    def attr(self, name: str) -> object:
        """Return an attribute."""
        return self.op.attr[name]

    def floats(self, name: str) -> float:
        """Return an attribute that is a number."""
        return float(self.op.attr[name])

    @property
    def scalar(self) -> Expr:
        """Return the number of a scalar op: its float or its int attribute."""
        attr = self.op.attr
        if attr["has_float_operand"]:
            return Expr(number(float(attr["float_operand"])))
        return Expr(repr(attr["int_operand"]))


@dataclass(frozen=True)
class Template:
    """How one op type is written.

    `write` returns the text of an output. `noun` names its result where the model has no name ("": the
    name of its first operand). `inline` tells that the text may stand inside that of its reader.
    `pinned` says why its gradient has to come in the dual of its planned state, where the engine would
    take any.
    """

    write: Callable[[ScriptOp], Expr]
    noun: str = "x"
    inline: bool = False
    pinned: str = ""


_OWN: dict[str, Template] = {}


def register_template(
    op_type: str, write: Callable[[ScriptOp], Expr], *, noun: str = "x", inline: bool = False
) -> None:
    """Add (or replace) the template of an op type; see Template."""
    _OWN[op_type] = Template(write, noun, inline)


def template_of(op: Op, templates: Mapping[str, Template]) -> Template:
    """Return the template of an op: the user's own, or the dialect's.

    Raises:
        AutoDDLError: there is none for its type.
    """
    found = _OWN.get(op.type) or templates.get(op.type)
    if found is None:
        raise AutoDDLError(
            f"codegen: op {op.name} has type {op.type!r}, for which there is no template; register how "
            f"it is written: autoddl.codegen.register_template({op.type!r}, "
            "lambda op: call('flow.…', op.args['in_0']))"
        )
    return found
