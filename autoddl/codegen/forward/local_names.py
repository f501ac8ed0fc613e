"""Names of the values of one function, chosen while it is written.

A name is free again after its value's last use. Wanted are, in this order: x for what enters a list of
layers, the module's name, a noun for what the op computes (scores, mean), the first operand's name.

Example: `x = x + h` where x is not read any more; `x2 = …` where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from autoddl.codegen.forward.frame import Frame
from autoddl.codegen.forward.function import FunctionStep
from autoddl.codegen.forward.module_scopes import within
from autoddl.codegen.forward.section import Value
from autoddl.codegen.source.expression import Expr, quoted
from autoddl.codegen.source.identifiers import (
    RESERVED,
    STREAM,
    boxed_name,
    first_free,
    identifier,
    last_word,
)
from autoddl.sbp.program import Op
from autoddl.sbp.program.blocks import is_layer

_MAIN = ("x_0", "in_0", "a_0", "input_0")  # operands after which a result is named
_SCORES = (
    "scalar_mul", "broadcast_add", "add_n", "broadcast_mul", "masked_fill", "reshape", "expand",
)  # fmt: skip


class LocalNames:
    """Names of the values of one function while it is written."""

    def __init__(self, frame: Frame, last_use: Mapping[Value, int]) -> None:
        self.frame, self.last_use = frame, last_use
        self.section, self.scopes = frame.section, frame.scopes
        self.name: dict[Value, str] = {}
        self.index = -1
        self.parameters = False
        self.reserved = RESERVED | frame.function_names | frame.dialect.globals

    def arguments(self) -> tuple[str, ...]:
        """Name what comes in: inputs as given, the first activation x, others after their makers."""
        for value in self.frame.inputs:
            known = self.frame.argument_names.get(value.tensor)
            boxed = [v for v in self.name if v.tensor == value.tensor]
            maker = self.section.made_by.get(value.tensor)
            if (
                known
                and not value.path
                and (self.frame.public or not self.section.is_trained(value))
            ):
                wanted = [known]
            elif boxed:
                before = self.section.state(boxed[0])
                wanted = [boxed_name(self.name[boxed[0]], before, self.section.state(value))]
            elif "x" not in self.name.values():
                wanted = ["x"]
            elif self.scopes.is_variable(value):
                words = [word for word in value.tensor.split(".") if not word.isdigit()]
                wanted = [identifier(words[-1]), identifier("_".join(words[-2:]))]
            else:
                word = self._word(maker) if maker is not None else ""
                wanted = [word, self._root_noun(value), *STREAM[1:]]
            self.name[value] = first_free(wanted, {*self.reserved, *self.name.values()})
        return tuple(self.name[value] for value in self.frame.inputs)

    def text(self, value: Value) -> Expr:
        """Return how a value is named here."""
        if value in self.name:
            return Expr(self.name[value])
        assert self.scopes.in_reach(value, self.frame.module), value
        self.parameters = True
        key = self.frame.variable_key(value.tensor)
        return Expr(f"{self.parameter_name}[{quoted(key)}]")

    @property
    def parameter_name(self) -> str:
        """Return how the function calls its parameters: by the long name where users call it."""
        return "params" if self.frame.public else "p"

    def new(self, value: Value, op: Op, reads: Sequence[Value], args: Mapping[str, Expr]) -> str:
        """Name the output of an op."""
        word = "" if op.module == self.frame.module else self._word(op)
        leaves = any(r.module != op.module for r in self.section.readers.get(value, ()))
        leaves = leaves or value in self.section.boxed or value in self.frame.outputs
        noun = self._noun(op, value, args)
        first = self._first_operand(args)
        stream = "x" if self._enters_list(value) else ""
        wanted = [stream, word if leaves else "", *self._sliced(op), noun, first]
        return self._take(value, wanted)

    def _word(self, op: Op) -> str:
        """Return the name of an op's module, if it has one of its own."""
        return "" if op.module == self.frame.top else last_word(op.module)

    def _root_noun(self, value: Value) -> str:
        """Return the noun of what a value was made from: a mask, say, that was only cast and scaled."""
        op = self.section.made_by.get(value.tensor)
        if op is None or not op.inputs:
            return ""
        noun = self.frame.template(op).noun
        return noun if noun else self._root_noun(Value(op.inputs[0][1]))

    def boxed(self, value: Value) -> str:
        """Name a value in another state: as before, if the old one is not read any more."""
        source = value.source
        before, after = self.section.state(source), self.section.state(value)
        if source in self.name:
            name = self.name[source]
            return self._take(value, [name, boxed_name(name, before, after)])
        key = self.frame.variable_key(source.tensor)
        words = [word for word in key.split(".") if not word.isdigit()]
        return self._take(value, [identifier("_".join(words[-2:]))])

    def of_call(self, value: Value, step: FunctionStep) -> str:
        """Name a result of a module's function."""
        assert step.module is not None
        word = last_word(step.module)
        several = len(step.writes) > 1
        maker = last_word(self.section.made_by[value.tensor].module) if several else ""
        return self._take(value, [maker, word if word not in self.reserved else ""])

    def _take(self, value: Value, wanted: Sequence[str]) -> str:
        live = {
            name
            for other, name in self.name.items()
            if self.last_use.get(other, -1) > self.index and name
        }
        candidates = [w for w in wanted if w and w not in self.reserved]
        # A name that is taken by what is still read gives way to the general ones.
        name = first_free(
            [*[c for c in candidates if c not in live], *STREAM], live | self.reserved
        )
        for other in [v for v, n in self.name.items() if n == name]:
            del self.name[other]
        self.name[value] = name
        return name

    def _enters_list(self, value: Value) -> bool:
        """Tell whether a value goes into the function of one of a numbered list of modules."""
        for op in self.section.readers.get(value, ()):
            scope = self.scopes.scope(op)
            while scope and within(scope, self.frame.module) and scope != self.frame.module:
                first = self.frame.callees[scope].inputs[:1]
                if is_layer(scope) and first == (value,):
                    return True
                scope = self.scopes.parent(scope)
        return False

    def _noun(self, op: Op, value: Value, args: Mapping[str, Expr]) -> str:
        noun = self.frame.template(op).noun
        if (value.tensor, op.type) == (dict(op.outputs).get("out_weight_0"), "nll"):
            return "counted"
        inner = set(_types_inside(args))
        if op.type == "scalar_mul" and inner == {"reduce_sum"}:
            return "mean"
        if op.type == "batch_matmul" and self._reaches_softmax(op):
            return "scores"
        if op.type in _SCORES and "batch_matmul" in inner and self._reaches_softmax(op):
            return "scores"
        return noun

    def _first_operand(self, args: Mapping[str, Expr]) -> str:
        """Return the name of the first operand, if it is a name and not a parameter."""
        for _, arg in sorted(args.items(), key=lambda item: item[0] not in _MAIN):
            found = re.match(r"[A-Za-z_]\w*", arg.text.lstrip("("))
            name = found[0] if found else ""
            inner = next((a for a in arg.args.values()), None)
            if name in self.reserved and inner is not None:
                return self._first_operand(arg.args)
            given = self.frame.argument_names.values()
            return "" if name in self.reserved or name in given else name
        return ""

    def _reaches_softmax(self, op: Op) -> bool:
        for _, tensor in op.outputs:
            for reader, _ in self.section.program.consumers.get(tensor, ()):
                if reader.phase != "forward":
                    continue
                if reader.type in ("softmax", "fused_scale_mask_softmax"):
                    return True
                if reader.type in _SCORES and self._reaches_softmax(reader):
                    return True
        return False

    def _sliced(self, op: Op) -> Iterator[str]:
        """Yield a name for one of all slices of a value: q of qkv, or left and right of two."""
        if op.type not in ("slice", "narrow"):
            return
        (source,) = self.section.reads(op).values()
        slices = [r for r in self.section.readers[source] if r.type == op.type]
        name = self.name.get(source, "")
        if len(slices) == len(name) > 1:
            yield name[slices.index(op)]
        elif len(slices) == 2:
            yield ("left", "right")[slices.index(op)]


def _types_inside(args: Mapping[str, Expr]) -> Iterator[str]:
    """Yield the types of all ops that are written inside an expression."""
    for arg in args.values():
        if arg.op is not None:
            yield arg.op.type
            yield from _types_inside(arg.args)
