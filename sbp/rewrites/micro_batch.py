"""Program of a whole batch → Program of one micro-batch, or of another batch, without tracing it again.

A micro-batch is in time what a device's part is in space under data parallelism: the inputs start
cut along dim 0, and the one-axis signatures of the ops say what becomes of the cut. S(d) means that
dim d grows with the batch; everything else (B, or P: a sum over the batch) has its whole shape.
So many equal parts one behind the other are a batch of any size: 12 samples are 3 quarters of 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autoddl.errors import AutoDDLError, RuleError, shown
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.program.ops_and_tensors import READ
from autoddl.sbp.rewrites.micro_attributes import mean_factors, resized
from autoddl.sbp.rewrites.one_sample import as_traced
from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS
from autoddl.sbp.rules.registry import OpView, Signature, find, signatures
from autoddl.sbp.rules.strided_cuts import reshaped
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import B, S, Sbp

MOST_BATCH = 1 << 30
_RESHAPES = frozenset({"expand_dims", "reshape", "reshape_like", "squeeze"})

# Ops that devices can't share, for the same seed would repeat random numbers or each would divide by
# its own count, but that a micro-batch has like any batch: all operands of the full shape shrink.
_SMALLER = frozenset({
    "bernoulli", "binary_cross_entropy_with_logits_reduce_mean",
    "binary_cross_entropy_with_logits_reduce_mean_grad", "dropout", "exponential", "normal",
    "random_mask_like", "uniform", "uniform_int",
})  # fmt: skip

States = tuple[Sbp, ...]
Option = tuple[States, States]


@dataclass(frozen=True)
class _Scale:
    """Cut the batch into `count` equal parts and take `taken` of them; errors say for `what`."""

    count: int
    taken: int
    what: str
    remedy: str


def micro_batch(program: Program, count: int, *, allow: frozenset[str] = frozenset()) -> Program:
    """Return the program of one of `count` equal micro-batches of a training step.

    Tensors that grow with the batch are `count` times shorter in the dim that does; parameters, states,
    gradients of parameters and updates are whole. Shapes in attributes (and the factors of means over
    the batch) are those of the micro-batch. Names, ops and their order stay, but for what the engine
    traces otherwise on one sample (`one_sample`). Batch norm uses the statistics of each micro-batch,
    as accumulating gradients on one device does, too; `allow` names other approximations that are
    permitted.

    Raises:
        AutoDDLError: `count` does not divide dim 0 of every input, or an op needs the whole batch.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise AutoDDLError(f"micro-batches {count!r}: give a whole number of at least 1")
    if count == 1:
        return program
    _check_inputs(program, "use 1 micro-batch")
    _check_divisible(program, count)
    scale = _Scale(count, 1, f"{count} micro-batches", "use 1 micro-batch")
    part = _Propagation(program, scale, allow | {LOCAL_STATISTICS}).program_of_part()
    return as_traced(program, part)


def batch_of(program: Program) -> int | None:
    """Return the samples of a batch: what divides dim 0 of every input; None where none says so."""
    shapes = [program.tensor[name].shape for name in program.inputs]
    if not shapes or not all(shapes) or any(map(_read, program.inputs)):
        return None
    return math.gcd(*(shape[0] for shape in shapes)) or None


def with_batch(program: Program, batch: int, *, allow: frozenset[str] = frozenset()) -> Program:
    """Return the program of a training step on another batch, as the engine would trace it.

    It is proven as for `micro_batch` that the batch can be cut into parts: into those of both batches
    that are equal, or into single samples where there are no smaller ones.

    Raises:
        AutoDDLError: `batch` is no number of samples, or an op needs the batch as it is.
    """
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MOST_BATCH:
        raise AutoDDLError(
            f"batch: got {shown(batch, 100)}; allowed are whole numbers from 1 to {MOST_BATCH:,}"
        )
    remedy = f"capture the program with a batch of {batch}"
    _check_inputs(program, remedy)
    now = batch_of(program)
    if now == batch:
        return program
    if now is None or now == 1:
        sizes = ", ".join(str(program.tensor[name].shape) for name in program.inputs)
        raise AutoDDLError(
            f"batch: got {batch} for inputs of shapes {shown(sizes)[1:-1]}, of which dims 0 have no "
            f"common batch of 2 or more samples to begin from; {remedy}"
        )
    parts = now // math.gcd(now, batch)
    count = parts if parts > 1 else now
    what = f"a batch of {batch} in place of {now}"
    scale = _Scale(count, batch * count // now, what, remedy)
    other = _Propagation(program, scale, allow | {LOCAL_STATISTICS}).program_of_part()
    return as_traced(program, other)


def check_stages(program: Program) -> None:
    """Refuse what does not go through stages, nor in micro-batches.

    Raises:
        AutoDDLError: the program reads its data itself, or updates tables by rows.
    """
    trained = {parameter.update for parameter in program.parameters}
    alone = [
        f"input {name} is what the graph reads itself" for name in program.inputs if _read(name)
    ]
    alone += [
        f"op {op.name} updates a table by rows (is_sparse=True of add_optimizer)"
        for op in program.ops
        if op.phase == "optimizer" and op.is_update and op.name not in trained
    ]
    if alone:
        raise AutoDDLError(
            f"pipeline: {alone[0]}, a whole batch at once in one stage; plan with pipeline=1 and "
            "micro_batches=1"
        )


def _read(name: str) -> bool:
    return name.startswith(READ)


def _check_inputs(program: Program, remedy: str) -> None:
    """Raise where an input has no batch that could be cut."""
    if not program.inputs:
        raise AutoDDLError(f"batch: the graph has no inputs to cut; {remedy}")
    for tensor in (program.tensor[name] for name in program.inputs):
        if _read(tensor.name):
            raise AutoDDLError(
                f"input {tensor.name} is what the graph reads itself, a whole batch at once; call the "
                f"graph with its data, or {remedy}"
            )
        if not tensor.shape:
            raise AutoDDLError(
                f"input {tensor.name}: a scalar has no dim 0 to cut; {remedy}, or make it a constant of "
                "the graph"
            )


def _check_divisible(program: Program, count: int) -> None:
    """Raise where an input can't be cut so, and name the numbers of micro-batches that would do."""
    tensors = [program.tensor[name] for name in program.inputs]
    batch = math.gcd(*(tensor.shape[0] for tensor in tensors))
    for tensor in tensors:
        if tensor.shape[0] % count or not tensor.shape[0]:
            allowed = [n for n in range(1, batch + 1) if batch % n == 0]
            raise AutoDDLError(
                f"input {tensor.name}: dim 0 of {tensor.shape} does not divide into {count} "
                f"micro-batches; numbers that divide all inputs: {', '.join(map(str, allowed))}"
            )


class _Propagation:
    """Carry cuts from the inputs through the ops; what depends on kinds of ops is done once each.

    A tensor that no input leads to (a mask made of ones, an expanded parameter) is whole until an op
    reads it together with a cut one; then its producer is `forced` to make a part of it.
    """

    def __init__(self, program: Program, scale: _Scale, allow: frozenset[str]) -> None:
        self.program, self.scale, self.count, self.allow = program, scale, scale.count, allow
        self.states: dict[str, Sbp] = {t.name: B for t in program.tensors}
        self.states |= dict.fromkeys(program.inputs, S(0))
        self.forced: dict[str, Option] = {}
        self.failed: set[tuple[str, Sbp]] = set()
        self.known: dict[int, tuple[Option, ...]] = {}
        self.places, self.kinds = program.columns.place, program.columns.kind.tolist()

    def program_of_part(self) -> Program:
        ops, index = self.program.ops, 0
        while index < len(ops):
            option = self._fitting(ops[index])
            if option is None:
                index = self._remade(ops[index])
                continue
            for (_, name), state in zip(ops[index].outputs, option[1], strict=True):
                self.states[name] = state
            index += 1
        tensors = {t.name: self._part(t) for t in self.program.tensors}
        return replace(self.program, ops=tuple(self._ops(tensors)), tensors=tuple(tensors.values()))

    def _part(self, tensor: Tensor) -> Tensor:
        state = self.states[tensor.name]
        if state is B:
            return tensor
        shape = local_shape(tensor.shape, (state,), (self.count,))
        if shape is None:
            raise AutoDDLError(
                f"tensor {tensor.name}: dim {state.dim} of {tensor.shape} does not divide into "
                f"{self.count} equal parts, for {self.scale.what}; {self.scale.remedy}"
            )
        size = shape[state.dim] * self.scale.taken
        shape = (*shape[: state.dim], size, *shape[state.dim + 1 :])
        return Tensor(tensor.name, shape, tensor.dtype, tensor.role)

    def _ops(self, tensors: Mapping[str, Tensor]) -> Iterator[Op]:
        """Yield the ops with the attributes that the micro-batch gives them."""
        factors = mean_factors(self.program, tensors)
        known: dict[object, tuple[tuple[str, object], ...]] = {}
        for op, kind in zip(self.program.ops, self.kinds, strict=True):
            cut = [self.states[name] for _, name in op.operands]
            if all(state is B for state in cut) and op.name not in factors:
                yield op
                continue
            key = (kind, *cut, factors.get(op.name))
            if key not in known:
                whole = {
                    o: (self.program.tensor[t].shape, tensors[t].shape) for o, t in op.operands
                }
                known[key] = resized(op, whole, factors.get(op.name))
            yield op if known[key] == op.attrs else replace(op, attrs=known[key])

    # --- which signature ---------------------------------------------------------------------

    def _have(self, op: Op) -> States:
        return tuple([self.states[name] for _, name in op.inputs])

    def _fitting(self, op: Op) -> Option | None:
        """Return the signature that reads the inputs as they are, or None."""
        have, forced = self._have(op), self.forced.get(op.name)
        if forced is not None and forced[0] == have:
            return forced
        plain = tuple([S(state.dim) if state.is_split else B for state in have])
        fits = next((option for option in self._options(op) if option[0] == plain), None)
        if fits is not None and plain == have:
            return fits
        if op.type in _RESHAPES:
            return self._reshaped(op, have)
        return None if fits is None else self._strided(op, have, fits[1])

    def _reshaped(self, op: Op, have: States) -> Option | None:
        """Return what a reshape makes of a dim that it does not cut contiguously."""
        shapes = self.program.shapes(op)
        state = self.states[dict(op.inputs)["in_0"]]
        if not state.is_split:
            return None
        made = reshaped(state, shapes["in_0"], shapes["out_0"], self.count)
        likes = [s for (operand, _), s in zip(op.inputs, have, strict=True) if operand != "in_0"]
        return None if made is None or any(s is not made for s in likes) else (have, (made,))

    def _strided(self, op: Op, have: States, made: States) -> Option | None:
        """Return the signature of an op whose inputs are all cut in strides, if its dims are theirs."""
        pairs = zip(op.inputs, have, strict=True)
        read = {(s.stride, self._size(name, s)) for (_, name), s in pairs if s.is_split}
        pairs = zip(op.outputs, made, strict=True)
        sizes = {self._size(name, s) for (_, name), s in pairs if s.is_split}
        if len(read) > 1 or not sizes <= {size for _, size in read}:
            return None
        ((stride, _),) = read
        return have, tuple([S(s.dim, stride) if s.is_split else B for s in made])

    def _size(self, name: str, state: Sbp) -> int:
        return self.program.tensor[name].shape[state.dim]

    def _options(self, op: Op) -> tuple[Option, ...]:
        """Return the one-axis signatures of an op, all-broadcast first; what is not cut is B."""
        kind = self.kinds[self.places[op.name]]
        if kind not in self.known:
            self.known[kind] = tuple(dict.fromkeys(self._signatures(op)))
        return self.known[kind]

    def _signatures(self, op: Op) -> Iterator[Option]:
        view = OpView.of(op, self.program.shapes(op))
        try:
            found = signatures(view, allow=self.allow)
        except (LookupError, TypeError, ValueError) as error:
            raise RuleError(
                f"rule of {op.type}: can't be used on op {op.name} ({error!r}); correct the rule, "
                "or capture the graph again"
            ) from error
        for signature in (*found, *_smaller(view)):
            states = {o: s if s.is_split else B for o, s in signature.items()}
            yield tuple(states[o] for o in view.inputs), tuple(states[o] for o in view.outputs)

    # --- tensors that no input leads to ------------------------------------------------------

    def _remade(self, op: Op) -> int:
        """Force producers of whole inputs to make parts; return the place of the first of them.

        Raises:
            AutoDDLError: no signature fits whatever they make.
        """
        for needs, _ in self._options(op):
            forced, self.failed = dict(self.forced), set()
            pairs = zip(op.inputs, needs, strict=True)
            if all(self._can_be(name, need, forced) for (_, name), need in pairs):
                new = [self.places[name] for name in forced if name not in self.forced]
                if new:  # else nothing changes, and the same would be tried for ever
                    self.forced = forced
                    return min(new)
        raise self._needs_whole(op)

    def _can_be(self, name: str, need: Sbp, forced: dict[str, Option]) -> bool:
        """Tell whether a tensor is in a state, or its producer can make it so; note what that takes."""
        op, have = self.program.producer.get(name), self.states[name]
        if op is None or have is not B:
            return have is need
        place = [tensor for _, tensor in op.outputs].index(name)
        if op.name in forced:
            return forced[op.name][1][place] is need
        if need is B or (name, need) in self.failed:
            return need is B
        for option in self._options(op):
            trial = dict(forced)
            pairs = zip(op.inputs, option[0], strict=True)
            if option[1][place] is need and all(self._can_be(t, s, trial) for (_, t), s in pairs):
                forced |= {**trial, op.name: option}
                return True
        self.failed.add((name, need))
        return False

    def _needs_whole(self, op: Op) -> AutoDDLError:
        cut = ", ".join(
            f"{operand} {self.program.tensor[name].shape} along dim {self.states[name].dim}"
            for operand, name in op.inputs
            if self.states[name] is not B
        )
        reason = (
            "it can't be computed in parts of the batch"
            if find(op.type) is not None
            else f"autoddl has no rule for {op.type}; add one with autoddl.register_rule"
        )
        return AutoDDLError(
            f"op {op.name} ({op.type}): {self.scale.what} would cut {cut}: {reason}; "
            f"{self.scale.remedy}, or keep the batch in a dim of its own"
        )


def _smaller(view: OpView) -> Iterator[Signature]:
    """Yield the signatures that an op has over micro-batches but not over devices."""
    if view.type in _SMALLER:
        full = max(view.shape.values(), key=math.prod)
        for dim in range(len(full)):
            yield {o: S(dim) if shape == full else B for o, shape in view.shape.items()}
