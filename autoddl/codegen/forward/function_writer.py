"""Write the function of one module: what it does in order, and the lines for it.

An op is written inside the expression of its one reader, up to MAX_NESTED ops deep; an expression that
does not fit a line is written again with its longest fitting part on a line of its own.

Example: add(matmul(x, w), b) with one reader each becomes F.linear(x, w, b), one line for two ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoddl.codegen.forward.boxing_reasons import reason
from autoddl.codegen.forward.frame import Frame
from autoddl.codegen.forward.function import Function, FunctionStep
from autoddl.codegen.forward.local_names import LocalNames
from autoddl.codegen.forward.section import Value
from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import Expr, literal
from autoddl.codegen.source.source_lines import Assign, Call, Comment, Line
from autoddl.codegen.templates import ScriptOp
from autoddl.sbp.program import Op
from autoddl.sbp.program.blocks import is_layer

MAX_NESTED = 8  # ops in one expression
_MARGIN = 16  # columns for indentation, a name and "="
_VIEWS = frozenset({"reshape", "transpose", "expand", "expand_dims"})
_ARITHMETIC = frozenset(
    {
        "add_n", "bias_add", "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div",
        "reduce_sum", "rsqrt", "scalar_add", "scalar_mul", "scalar_div", "square",
    }
)  # fmt: skip


class FunctionWriter:
    """Write one function: its steps, its names, its lines."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.section, self.scopes = frame, frame.section, frame.scopes
        self.module, self.inputs, self.outputs = frame.module, frame.inputs, frame.outputs
        self.split: set[str] = set()

    def function(self) -> Function:
        """Return the function; ops of expressions that are too long get lines of their own."""
        while True:
            found = self._attempt()
            if isinstance(found, Function):
                return found
            self.split.add(found)

    # --- what there is to do

    def _steps(self) -> list[FunctionStep]:
        """Return what the function does in order; boxings come just before their first reader."""
        section, homes = self.section, self.scopes.homes
        steps: list[FunctionStep] = []
        made: set[Value] = set()
        called: set[str] = set()

        def need(value: Value) -> None:
            if value.path and homes[value] == self.module and value not in made:
                need(value.source)
                made.add(value)
                steps.append(FunctionStep((value.source,), (value,)))

        for op in self.frame.ops:
            scope = self.scopes.scope(op)
            while scope != self.module and self.scopes.parent(scope) != self.module:
                scope = self.scopes.parent(scope)
            if scope == self.module:
                reads = tuple(dict.fromkeys(section.reads(op).values()))
                for value in reads:
                    need(value)
                made_here = sorted(op.outputs, key=lambda pair: pair[0].startswith("out_weight"))
                writes = tuple(Value(t) for _, t in made_here if self._is_read(Value(t)))
                steps.append(FunctionStep(reads, writes, op=op))
            elif scope not in called:
                called.add(scope)
                callee = self.frame.callees[scope]
                for value in callee.inputs:
                    need(value)
                steps.append(FunctionStep(callee.inputs, callee.outputs, module=scope))
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
        state = LocalNames(self.frame, last_use)
        arguments = state.arguments()
        expressions: dict[Value, Expr] = {}
        lines: list[Line] = []
        for index, step in enumerate(steps):
            state.index = index
            if step.op is None:
                lines += self._boxing_or_call(step, state, index == len(steps) - 1)
                continue
            args = {
                operand: self._read(step.op, operand, expressions.get(value) or state.text(value))
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
        if not lines or isinstance(lines[-1], Comment) or lines[-1].targets:
            lines.append(Assign((), ", ".join(state.text(v).text for v in self.outputs)))
        return Function(
            self.module,
            tuple(lines),
            arguments,
            state.parameters,
            self.inputs,
            self.outputs,
            self.frame.ops,
            self._flow(arguments),
        )

    def _read(self, op: Op, operand: str, value: Expr) -> Expr:
        late = self.section.late_axes(self.section.reads(op)[operand])
        axes = [axis for axis in self.section.summed_axes(op, operand) if axis not in late]
        return self.frame.dialect.read(value, axes)

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
        states, placement = section.plan.signatures[op.name], self.frame.placement
        view = ScriptOp(op, args, shapes, output, dtype, states, placement)
        found = self.frame.template(op).write(view)
        return Expr(found.text, found.binds, op, args, shapes)

    def _op_lines(
        self, step: FunctionStep, args: Mapping[str, Expr], state: LocalNames, last: bool
    ) -> list[Line] | str:
        """Return the lines of an op, one for each output that is read, or the op to split off."""
        op = step.op
        assert op is not None
        lines: list[Line] = []
        for value in step.writes:
            text = self._expression(op, args, value)
            pinned = self.frame.template(op).pinned
            returned = last and self.outputs == (value,) and not pinned
            name = "" if returned else state.new(value, op, step.reads, args)
            line = Assign((name,) if name else (), text.text)
            if len(_statement(line)) + 4 > layout.WIDTH:
                inner = list(_inside(args))
                if inner:  # the longest that fits on a line of its own, if there is one
                    short = [pair for pair in inner if pair[0] <= layout.WIDTH - _MARGIN]
                    return max(short or inner)[1]
            lines.append(line)
            if pinned:
                kept = self.frame.dialect.pinned(Expr(name), self.section.state(value))
                lines += [Comment(pinned), Assign((name,), kept.text)]
        return lines

    def _boxing_or_call(self, step: FunctionStep, state: LocalNames, last: bool) -> Iterator[Line]:
        section = self.section
        if step.module is not None:
            callee = self.frame.callees[step.module]
            args = tuple(state.text(v).text for v in callee.inputs)
            part = None
            if callee.has_parameters:
                state.parameters = True
                part = self.frame.variable_key(f"{step.module}.").rstrip(".")
                part = "" if step.module == self.frame.top else part
            listed = is_layer(step.module)
            returned = last and step.writes == self.outputs and not listed
            targets = () if returned else tuple(state.of_call(v, step) for v in step.writes)
            yield Call(targets, self.frame.group_of[step.module], part, args)
            return
        ((source,), (value,)) = step.reads, step.writes
        before, after = section.state(source), section.state(value)
        yield Comment(reason(section, self.module, value, before, after))
        boxed = self.frame.dialect.boxed(
            state.text(source), before, after, trained=section.is_trained(value),
            late=section.late_axes(value), grouped=section.is_grouped(value),
        )  # fmt: skip
        yield Assign((state.boxed(value),), boxed.text)

    def _nested(self, steps: Sequence[FunctionStep]) -> set[str]:
        """Return the ops that are written inside the expression of their one reader."""
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
            if op.name in self.split or not self.frame.template(op).inline or len(step.writes) != 1:
                continue
            (value,) = step.writes
            readers = self.section.readers.get(value, ())
            if len(readers) != 1 or self.section.boxed.get(value) or value in self.outputs:
                continue
            reader = readers[0]
            uses = [v for v in self.section.reads(reader).values() if v == value]
            if reader.name not in at or reader.module != op.module or len(uses) != 1:
                continue
            if not _fits_inside(op, reader):
                continue
            if size < MAX_NESTED:
                found.add(op.name)
        return found

    def _last_uses(self, steps: Sequence[FunctionStep], nested: set[str]) -> dict[Value, int]:
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


def _fits_inside(op: Op, reader: Op) -> bool:
    """Tell whether an op's text may stand inside its reader's: sums take all, calls take views only."""
    return op.type in _VIEWS or reader.type in _ARITHMETIC


def _statement(line: Assign) -> str:
    return f"{', '.join(line.targets)} = {line.text}" if line.targets else f"return {line.text}"


def _inside(args: Mapping[str, Expr]) -> Iterator[tuple[int, str]]:
    """Yield length and op of all expressions inside an expression."""
    for arg in args.values():
        if arg.op is not None:
            yield len(arg.text), arg.op.name
            yield from _inside(arg.args)
