"""What a template is: how one op type is written in Python, and what it sees of an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoddl.codegen.expression import Expr, number
from autoddl.sbp.program import Op
from autoddl.sbp.state import NdSbp


@dataclass(frozen=True)
class OpView:
    """What a template sees: the op, its operands' texts, shapes, and the output that is wanted.

    `args` maps inputs ("in_0") to texts, `shape` all operands to logical shapes; `output` is the
    operand that is written, of `dtype`; `states` are those of all operands.
    """

    op: Op
    args: Mapping[str, Expr]
    shape: Mapping[str, tuple[int, ...]]
    output: str
    dtype: str
    states: Mapping[str, NdSbp]

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
            return Expr(number(attr["float_operand"]))
        return Expr(repr(attr["int_operand"]))


@dataclass(frozen=True)
class Template:
    """How one op type is written.

    `write` returns the text of an output. `noun` names its result where the model has no name ("": the
    name of its first operand). `inline` tells that the text may stand inside that of its reader.
    `pinned` says why its gradient has to come in the dual of its planned state, where OneFlow would
    take any.
    """

    write: Callable[[OpView], Expr]
    noun: str = "x"
    inline: bool = False
    pinned: str = ""
