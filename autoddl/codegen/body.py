"""The forward pass as Python functions: one for each module worth it, equal ones once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoddl.codegen import lines as layout
from autoddl.codegen.expression import Expr, literal, sbp_text
from autoddl.codegen.lines import Assign, Call, Comment, Line
from autoddl.codegen.names import (
    RESERVED,
    STREAM,
    boxed_name,
    first_free,
    function_name,
    identifier,
    last_word,
)
from autoddl.codegen.ops import OpView, fits_inside, template_of
from autoddl.codegen.reasons import backward_state, reason
from autoddl.codegen.scopes import Scopes, within
from autoddl.codegen.values import Section, Value
from autoddl.sbp.program import Op

MAX_NESTED = 8  # ops in one expression


@dataclass(frozen=True)
class Step:
    """One thing that a function does: an op (with its output), a call of a module, or a boxing."""

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    op: Op | None = None
    module: str | None = None


@dataclass
class Function:
    """A module's function: names of its arguments, its lines, and the values that go in and out."""

    module: str
    lines: tuple[Line, ...]
    arguments: tuple[str, ...]
    has_parameters: bool
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    ops: tuple[Op, ...] = ()
    flow: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is equal for functions that can be shared."""
        return self.lines, self.arguments, self.has_parameters


@dataclass
class Group:
    """Equal functions of several modules, with the name that they share."""

    functions: list[Function] = field(default_factory=list)
    name: str = ""


class Groups:
    """All functions of a script, equal ones together."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._known: dict[tuple[object, ...], int] = {}

    def add(self, function: Function, name: str = "") -> int:
        """Return the number of the group that a function belongs to; a name of its own, or by module."""
        key = (function.key, name)
        if key not in self._known:
            self._known[key] = len(self.groups)
            self.groups.append(Group(name=name))
        number = self._known[key]
        self.groups[number].functions.append(function)
        return number


class Writer:
    """Write the functions of a section, callees first, into the groups of a script."""

    def __init__(
        self,
        section: Section,
        groups: Groups,
        *,
        top: str,
        checked: bool = False,
        inline_top: bool = False,
    ) -> None:
        self.section, self.groups, self.top, self.checked = section, groups, top, checked
        self.scopes = Scopes(section, top, inline_top=inline_top)
        self.group_of: dict[str, int] = {}
        self.function_of: dict[str, Function] = {}
        self._ops_of = {
            f: tuple(op for op in section.ops if within(op.module, f))
            for f in self.scopes.functions
        }
        self.function_names = {
            function_name(f, self._ops_of[f]) for f in self.scopes.functions if f
        } | {"forward", "loss_of"}

    def write(self, name: str, argument_names: Mapping[str, str]) -> Function:
        """Write all functions; the section's own is called `name`, its arguments as given."""
        for module in sorted(self.scopes.functions, key=lambda f: -len(f.split(".")) * bool(f)):
            function = _FunctionWriter(self, module, argument_names).function()
            own = name if not module else ("forward" if module == self.top else "")
            self.function_of[module] = function
            self.group_of[module] = self.groups.add(function, own)
        return self.function_of[""]

    def ops_of(self, module: str) -> tuple[Op, ...]:
        """Return the ops of a function and of those that it calls."""
        return self._ops_of[module]

    def variable_key(self, tensor: str, scope: str) -> str:
        """Return the name of a variable among the parameters that a function gets."""
        prefix = scope or self.top
        return tensor[len(prefix) + 1 :] if prefix and within(tensor, prefix) else tensor


class _FunctionWriter:
    """Write one function: its steps, its names, its lines."""

    def __init__(self, writer: Writer, module: str, argument_names: Mapping[str, str]) -> None:
        self.writer, self.section, self.scopes = writer, writer.section, writer.scopes
        self.module, self.argument_names = module, argument_names
        self.split: set[str] = set()
        self.inputs, self.outputs = self._crossing()

    def function(self) -> Function:
        while True:
            found = self._attempt()
            if isinstance(found, Function):
                return found
            self.split.add(found)

    # --- what there is to do

    def _inside(self, home: str) -> bool:
        return within(home, self.module)

    def _crossing(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Return the values that come in (in the order of their first use) and that go out."""
        section, homes = self.section, self.scopes.homes
        ins: dict[Value, None] = {}
        outs: dict[Value, None] = {}
        for op in self.writer.ops_of(self.module):
            for value in section.reads(op).values():
                chain = value
                while self._inside(homes[chain]) and chain.path:
                    chain = chain.source
                if not self._inside(homes[chain]):
                    ins[chain] = None
        if not self.module:
            return tuple(Value(t) for t in section.arguments), section.results
        for op in self.writer.ops_of(self.module):
            for _, tensor in op.outputs:
                value = Value(tensor)
                outside = [o for o in section.readers.get(value, ()) if not self._owns(o)]
                boxed = [b for b in section.boxed.get(value, ()) if not self._inside(homes[b])]
                if outside or boxed or value in section.results:
                    outs[value] = None
        reach = [v for v in ins if not self.scopes.in_reach(v, self.module)]
        return tuple(reach), tuple(outs)

    def _owns(self, op: Op) -> bool:
        return within(op.module, self.module)

    def _steps(self) -> list[Step]:
        """Return what the function does in order; boxings come just before their first reader."""
        section, homes = self.section, self.scopes.homes
        steps: list[Step] = []
        made: set[Value] = set()
        called: set[str] = set()

        def need(value: Value) -> None:
            if value.path and homes[value] == self.module and value not in made:
                need(value.source)
                made.add(value)
                steps.append(Step((value.source,), (value,)))

        for op in self.writer.ops_of(self.module):
            scope = self.scopes.scope(op)
            while scope != self.module and self.scopes.parent(scope) != self.module:
                scope = self.scopes.parent(scope)
            if scope == self.module:
                reads = tuple(dict.fromkeys(section.reads(op).values()))
                for value in reads:
                    need(value)
                made_here = sorted(op.outputs, key=lambda pair: pair[0].startswith("out_weight"))
                writes = tuple(Value(t) for _, t in made_here if self._is_read(Value(t)))
                steps.append(Step(reads, writes, op=op))
            elif scope not in called:
                called.add(scope)
                callee = self.writer.function_of[scope]
                for value in callee.inputs:
                    need(value)
                steps.append(Step(callee.inputs, callee.outputs, module=scope))
        for value in self.outputs:
            need(value)
        return steps

    def _is_read(self, value: Value) -> bool:
        section = self.section
        return bool(
            section.readers.get(value) or section.boxed.get(value) or value in section.results
        )

    # --- how it is written

    def _attempt(self) -> Function | str:
        """Return the function, or the op that has to stand on a line of its own instead."""
        steps = self._steps()
        nested = self._nested(steps)
        last_use = self._last_uses(steps, nested)
        state = _Names(self, last_use)
        arguments = state.arguments()
        expressions: dict[Value, Expr] = {}
        lines: list[Line] = []
        for index, step in enumerate(steps):
            state.index = index
            if step.op is None:
                lines += self._boxing_or_call(step, state)
                continue
            args = {
                operand: expressions.get(value) or state.text(value)
                for operand, value in self.section.reads(step.op).items()
            }
            if step.op.name in nested:
                (value,) = step.writes
                expressions[value] = self._expression(step.op, args, value)
                continue
            written = self._op_lines(step, args, state, index == len(steps) - 1)
            if isinstance(written, str):
                return written
            lines += written
        if not lines or not (isinstance(lines[-1], Assign) and not lines[-1].targets):
            lines.append(Assign((), ", ".join(state.text(v).text for v in self.outputs)))
        return Function(
            self.module,
            tuple(lines),
            arguments,
            state.parameters,
            self.inputs,
            self.outputs,
            self.writer.ops_of(self.module),
            self._flow(arguments),
        )

    def _flow(self, arguments: Sequence[str]) -> str:
        """Return what goes in and out, for the docstring: "x (8, 32) in (S0, B) → …"."""
        section = self.section

        def described(value: Value) -> str:
            return (
                f"{literal(section.program.tensor[value.tensor].shape)} in {section.state(value)}"
            )

        pairs = zip(arguments, self.inputs, strict=True)
        ins = ", ".join(f"{name} {described(value)}" for name, value in pairs)
        return f"{ins} → {', '.join(map(described, self.outputs))}"

    def _expression(self, op: Op, args: Mapping[str, Expr], value: Value) -> Expr:
        section = self.section
        shapes = section.program.shapes(op)
        output = next(o for o, t in op.outputs if t == value.tensor)
        dtype = section.program.tensor[value.tensor].dtype
        view = OpView(op, args, shapes, output, dtype, section.plan.signatures[op.name])
        found = template_of(op).write(view)
        return Expr(found.text, found.binds, op, args, shapes)

    def _op_lines(
        self, step: Step, args: Mapping[str, Expr], state: _Names, last: bool
    ) -> list[Line] | str:
        """Return the lines of an op, one for each output that is read, or the op to split off."""
        op = step.op
        assert op is not None
        lines: list[Line] = []
        for value in step.writes:
            text = self._expression(op, args, value)
            pinned = template_of(op).pinned
            returned = last and self.outputs == (value,) and not (pinned or self.writer.checked)
            name = "" if returned else state.new(value, op, step.reads, args)
            line = Assign((name,) if name else (), text.text)
            if layout.laid_out(_statement(line), 4) is None:
                inner = [
                    (len(arg.text), arg.op.name) for arg in args.values() if arg.op is not None
                ]
                if inner:
                    return max(inner)[1]
            lines.append(line)
            if pinned:
                goal = sbp_text(self.section.state(value))
                lines.append(Comment(pinned))
                lines.append(Assign((name,), f"{name}.to_global(sbp={goal}, grad_sbp={goal})"))
            if self.writer.checked:
                goal = sbp_text(self.section.state(value))
                lines.append(Assign(("_",), f'expect({name}, {goal}, "{op.name}")'))
        return lines

    def _boxing_or_call(self, step: Step, state: _Names) -> Iterator[Line]:
        section = self.section
        if step.module is not None:
            callee = self.writer.function_of[step.module]
            args = tuple(state.text(v).text for v in callee.inputs)
            part = None
            if callee.has_parameters:
                state.parameters = True
                part = self.writer.variable_key(f"{step.module}.", self.module).rstrip(".")
                part = "" if step.module == self.writer.top else part
            targets = tuple(state.of_call(v, step) for v in step.writes)
            yield Call(targets, self.writer.group_of[step.module], part, args)
            return
        ((source,), (value,)) = step.reads, step.writes
        before, after = section.state(source), section.state(value)
        yield Comment(reason(section, self.module, value, before, after))
        text = state.text(source).atom
        grad = f", grad_sbp={sbp_text(backward_state(before))}" if section.is_trained(value) else ""
        yield Assign((state.boxed(value),), f"{text}.to_global(sbp={sbp_text(after)}{grad})")

    def _nested(self, steps: Sequence[Step]) -> set[str]:
        """Return the ops that are written inside the expression of their one reader."""
        if self.writer.checked:
            return set()
        at = {step.op.name: step for step in steps if step.op is not None}
        found: set[str] = set()
        weight: dict[str, int] = {}
        for step in steps:
            op = step.op
            if op is None:
                continue
            size = 1 + sum(
                weight[self.section.made_by[v.tensor].name]
                for v in step.reads
                if not v.path
                and v.tensor in self.section.made_by
                and self.section.made_by[v.tensor].name in found
            )
            weight[op.name] = size
            if op.name in self.split or not template_of(op).inline or len(step.writes) != 1:
                continue
            (value,) = step.writes
            readers = self.section.readers.get(value, ())
            if len(readers) != 1 or self.section.boxed.get(value) or value in self.outputs:
                continue
            reader = readers[0]
            uses = [v for v in self.section.reads(reader).values() if v == value]
            if reader.name not in at or reader.module != op.module or len(uses) != 1:
                continue
            if not fits_inside(op, reader):
                continue
            if size < MAX_NESTED:
                found.add(op.name)
        return found

    def _last_uses(self, steps: Sequence[Step], nested: set[str]) -> dict[Value, int]:
        """Return the place of the last step that names each value."""
        written_at: dict[str, int] = {}
        for index in reversed(range(len(steps))):
            op = steps[index].op
            if op is None or op.name not in nested:
                continue
            (value,) = steps[index].writes
            (reader,) = self.section.readers[value]
            at = next(
                i for i, s in enumerate(steps) if s.op is not None and s.op.name == reader.name
            )
            written_at[op.name] = written_at.get(reader.name, at)
        last: dict[Value, int] = {}
        for index, step in enumerate(steps):
            at = written_at.get(step.op.name, index) if step.op is not None else index
            for value in step.reads:
                last[value] = max(last.get(value, -1), at)
        return last | dict.fromkeys(self.outputs, len(steps))


class _Names:
    """Names of the values of one function while it is written."""

    def __init__(self, writer: _FunctionWriter, last_use: Mapping[Value, int]) -> None:
        self.writer, self.last_use = writer, last_use
        self.section, self.scopes = writer.section, writer.scopes
        self.name: dict[Value, str] = {}
        self.index = -1
        self.parameters = False
        self.reserved = RESERVED | writer.writer.function_names

    def arguments(self) -> tuple[str, ...]:
        """Name what comes in: inputs as given, the first activation x, others after their makers."""
        writer = self.writer
        for value in writer.inputs:
            known = writer.argument_names.get(value.tensor)
            boxed = [v for v in self.name if v.tensor == value.tensor]
            maker = self.section.made_by.get(value.tensor)
            public = writer.module in ("", writer.writer.top)
            if known and not value.path and (public or not self.section.is_trained(value)):
                wanted = [known]
            elif boxed:
                before = self.section.state(boxed[0])
                wanted = [boxed_name(self.name[boxed[0]], before, self.section.state(value))]
            elif "x" not in self.name.values():
                wanted = ["x"]
            elif self.scopes.is_variable(value):
                wanted = [identifier("_".join(value.tensor.split(".")[-2:]))]
            else:
                wanted = [last_word(maker.module) if maker is not None else "", *STREAM[1:]]
            self.name[value] = first_free(wanted, {*self.reserved, *self.name.values()})
        return tuple(self.name[value] for value in writer.inputs)

    def text(self, value: Value) -> Expr:
        """Return how a value is named here."""
        if value in self.name:
            return Expr(self.name[value])
        assert self.scopes.in_reach(value, self.writer.module), value
        self.parameters = True
        key = self.writer.writer.variable_key(value.tensor, self.writer.module)
        return Expr(f'{self.parameter_name}["{key}"]')

    @property
    def parameter_name(self) -> str:
        """Return how the function calls its parameters: by the long name where users call it."""
        return "params" if self.writer.module in ("", self.writer.writer.top) else "p"

    def new(self, value: Value, op: Op, reads: Sequence[Value], args: Mapping[str, Expr]) -> str:
        """Name the output of an op."""
        word = ""
        if op.module != self.writer.module:
            word = last_word(op.module)
        leaves = any(r.module != op.module for r in self.section.readers.get(value, ()))
        leaves = leaves or value in self.section.boxed or value in self.writer.outputs
        noun = self._noun(op, value, args)
        first = self._first_operand(args)
        stream = "x" if self._enters_list(value) else ""
        wanted = [stream, word if leaves else "", *self._letters(value, op), noun, first]
        return self._take(value, wanted)

    def boxed(self, value: Value) -> str:
        """Name a value in another state: as before, if the old one is not read any more."""
        source = value.source
        before, after = self.section.state(source), self.section.state(value)
        if source in self.name:
            name = self.name[source]
            return self._take(value, [name, boxed_name(name, before, after)])
        key = self.writer.writer.variable_key(source.tensor, self.writer.module)
        words = [word for word in key.split(".") if not word.isdigit()]
        return self._take(value, [identifier("_".join(words[-2:]))])

    def of_call(self, value: Value, step: Step) -> str:
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
            while scope and within(scope, self.writer.module) and scope != self.writer.module:
                if scope.rpartition(".")[2].isdigit():
                    return True
                scope = self.scopes.parent(scope)
        return False

    def _noun(self, op: Op, value: Value, args: Mapping[str, Expr]) -> str:
        noun = template_of(op).noun
        if (value.tensor, op.type) == (dict(op.outputs).get("out_weight_0"), "nll"):
            return "counted"
        inner = [arg.op.type for arg in args.values() if arg.op is not None]
        if op.type == "scalar_mul" and "reduce_sum" in inner:
            return "mean"
        if op.type == "batch_matmul" and self._reaches_softmax(op):
            return "scores"
        if op.type in _SCORES and "batch_matmul" in inner and self._reaches_softmax(op):
            return "scores"
        return noun

    def _first_operand(self, args: Mapping[str, Expr]) -> str:
        """Return the name of the first operand, if it is a name and not a parameter."""
        for arg in args.values():
            found = re.match(r"[A-Za-z_]\w*", arg.text.lstrip("("))
            name = found[0] if found else ""
            inner = next((a for a in arg.args.values()), None)
            if name in self.reserved and inner is not None:
                return self._first_operand(arg.args)
            given = self.writer.argument_names.values()
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

    def _letters(self, value: Value, op: Op) -> Iterator[str]:
        """Yield the letter of one of several slices of a value with as many letters: qkv → q, k, v."""
        if op.type != "slice":
            return
        source = self.section.reads(op)["x_0"]
        slices = [r for r in self.section.readers[source] if r.type == "slice"]
        name = self.name.get(source, "")
        if len(slices) == len(name) > 1:
            yield name[slices.index(op)]


_SCORES = (
    "scalar_mul",
    "broadcast_add",
    "add_n",
    "broadcast_mul",
    "masked_fill",
    "reshape",
    "expand",
)


def _statement(line: Assign) -> str:
    return f"{', '.join(line.targets)} = {line.text}" if line.targets else f"return {line.text}"
