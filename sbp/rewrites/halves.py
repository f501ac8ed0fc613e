"""Program of one half of a batch → Program of both halves in turn ("duplex"), which update once.

While one half communicates the other computes. What depends on the inputs is there twice: an op of the
first half keeps its name, that of the second has the prefix HALF. Parameters, what is made of them
alone, and updates are there once: a gradient is the sum of what both halves make of it, and since the
loss of the batch is the mean of theirs, the backward pass of each begins with 1/2.

One linear layer, loss = mean(x @ w), on half a batch:

    y = x @ w,     l = mean(y),    ones = 1 (like l),        g = xᵀ @ (ones / n),       w -= g

becomes (' = with the prefix), with x and x' as inputs, l and l' as outputs:

    y = x @ w,     l = mean(y),    seed = 0.5 · ones,        g = xᵀ @ (seed / n)
    y' = x' @ w,   l' = mean(y'),  seed' = 0.5 · ones',      g' = x'ᵀ @ (seed' / n)
    sum = g + g',  w -= sum

Source: HiDup (Zhang et al., SoCC 2022), section 3: there, too, halves share parameters, and their
gradients are added up before they are synchronised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op, Program, Tensor

HALF, SUM, SEED = "autoddl-half-", "autoddl-sum-", "autoddl-seed-"
"""What the names of the second half's ops, sums of gradients, and ops that halve a seed begin with."""


def halves(half: Program) -> Program:
    """Return the program of two halves of a batch from that of one (`micro_batch(program, 2)`).

    Raises:
        AutoDDLError: the backward pass has no seed that could be halved.
    """
    return _Doubling(half).program()


def second(name: str) -> str:
    """Return the name that an op, an input or a tensor of the first half has in the second."""
    return f"{HALF}{name}"


class _Doubling:
    def __init__(self, half: Program) -> None:
        self.half = half
        self.twice = _reached(half)
        self.seeds = {t for op in half.ops if self._is_seed(op) for _, t in op.outputs}
        if any(p.update for p in half.parameters) and not self.seeds:
            raise AutoDDLError(
                f"duplex: nothing reads the loss {half.loss} as the seed of the backward pass; "
                "plan with duplex=False"
            )
        makers = {name: half.producer[name].name for name in self._gradients()}
        times = Counter(makers.values())  # an op may make several: of a norm's weight and bias, say
        self.sums = {
            name: SUM + (maker if times[maker] == 1 else name.replace("/", "-"))
            for name, maker in makers.items()
        }

    def program(self) -> Program:
        half, twice = self.half, self.twice
        tensors = (*half.tensors, *self._tensors())
        parameters = tuple(
            replace(p, gradient=self._added(p.gradient)) if p.gradient in self.sums else p
            for p in half.parameters
        )
        outputs = [name for name in half.outputs if name in twice]
        return replace(
            half,
            ops=tuple(self._ops()),
            tensors=tensors,
            inputs=(*half.inputs, *map(second, half.inputs)),
            outputs=(*half.outputs, *map(second, outputs)),
            parameters=parameters,
        )

    def _is_seed(self, op: Op) -> bool:
        """Tell whether an op makes the gradient of the loss in terms of itself, which is 1."""
        return op.type == "ones_like" and [t for _, t in op.inputs] == [self.half.loss]

    def _gradients(self) -> Iterator[str]:
        """Yield the gradients that updates read."""
        for parameter in self.half.parameters:
            if parameter.update is not None and parameter.gradient in self.twice:
                yield parameter.gradient

    def _ops(self) -> Iterator[Op]:
        for op in self.half.ops:
            copies = [op, self._copy(op)] if self._comes_twice(op) else [op]
            for one in copies:
                yield self._reading(one)
                if one.outputs and self._first(one.outputs[0][1]) in self.seeds:
                    yield self._halved(one)
            for _, name in op.outputs:
                if name in self.sums:
                    yield self._sum(op, name)

    def _comes_twice(self, op: Op) -> bool:
        return op.phase != "optimizer" and any(name in self.twice for _, name in op.inputs)

    def _copy(self, op: Op) -> Op:
        """Return the op of the second half; where random numbers are drawn, others."""
        inputs, outputs = (
            tuple((o, second(t) if t in self.twice else t) for o, t in pairs)
            for pairs in (op.inputs, op.outputs)
        )
        attrs = tuple((k, v ^ 1 if k == "seed" else v) for k, v in op.attrs)
        return replace(op, name=second(op.name), inputs=inputs, outputs=outputs, attrs=attrs)

    def _first(self, name: str) -> str:
        return name.removeprefix(HALF)

    def _reading(self, op: Op) -> Op:
        """Return an op that reads sums and halved seeds instead of what they are made of."""
        inputs = tuple((operand, self._read(op, name)) for operand, name in op.inputs)
        return op if inputs == op.inputs else replace(op, inputs=inputs)

    def _read(self, op: Op, name: str) -> str:
        if self._first(name) in self.seeds:
            return f"{SEED}{name}"
        return self._added(name) if op.phase == "optimizer" and name in self.sums else name

    def _added(self, name: str) -> str:
        return f"{self.sums[name]}/out_0"

    def _halved(self, op: Op) -> Op:
        ((_, name),) = op.outputs
        attrs = (
            ("float_operand", 0.5), ("has_float_operand", True), ("has_int_operand", False),
            ("int_operand", 0),
        )  # fmt: skip
        return replace(
            op, name=f"{SEED}{op.name}", type="scalar_mul", attrs=attrs,
            inputs=(("in_0", name),), outputs=(("out_0", f"{SEED}{name}"),),
        )  # fmt: skip

    def _sum(self, op: Op, name: str) -> Op:
        inputs = ("in_0", name), ("in_1", second(name))
        return replace(
            op, name=self.sums[name], type="add_n", attrs=(), inputs=inputs,
            outputs=(("out_0", self._added(name)),),
        )  # fmt: skip

    def _tensors(self) -> Iterator[Tensor]:
        for tensor in self.half.tensors:
            name = tensor.name
            if name in self.twice:
                role = "activation" if tensor.role == "loss" else tensor.role
                yield replace(tensor, name=second(name), role=role)
            if name in self.seeds:
                yield replace(tensor, name=f"{SEED}{name}")
                yield replace(tensor, name=f"{SEED}{second(name)}")
            if name in self.sums:
                yield replace(tensor, name=self._added(name))


def _reached(program: Program) -> set[str]:
    """Return the inputs and all that ops make of them, updates aside."""
    found = set(program.inputs)
    for op in program.ops:
        if op.phase != "optimizer" and any(name in found for _, name in op.inputs):
            found.update(name for _, name in op.outputs)
    return found
