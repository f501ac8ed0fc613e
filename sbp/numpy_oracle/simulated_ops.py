"""The NumPy oracle of ops: run references on simulated ranks, and judge signatures by the outcome."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from autoddl.errors import AutoDDLError, RuleError
from autoddl.sbp.numpy_oracle.simulated_tensors import Array, Locals, assemble, close, shard
from autoddl.sbp.numpy_oracle.trial import Trial, even_states
from autoddl.sbp.rules.registry import LocalOp, OpRule, OpView, Shape, find
from autoddl.sbp.shards import shard_shape, shard_slices
from autoddl.sbp.shares import Cuts, places
from autoddl.sbp.state import B, NdSbp, P, Sbp, broadcast

NdSignature = Mapping[str, NdSbp]

NOWHERE = -(1 << 40)  # the start of a shard of several pieces: no op may ask for it
MORE_DRAWS = 4  # of inputs, to sort out what is right by accident


def sample_inputs(view: OpView, rng: np.random.Generator) -> dict[str, Array]:
    """Draw whole inputs that the op accepts, as its rule's samplers say.

    Raises:
        RuleError: the op type has no rule.
    """
    samplers = _rule(view).samplers
    return {
        name: samplers[name](view, name, rng)
        if name in samplers
        else rng.normal(0.3, 1.0, view.shape[name])
        for name in view.inputs
    }


def on_one_device(view: OpView, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run the op's reference on whole inputs.

    Raises:
        RuleError: the op type has no rule.
    """
    one = {name: broadcast(1) for name in view.inputs + view.outputs}
    results = run_op(view, one, (1,), {name: [array] for name, array in inputs.items()})
    return {name: array for name, (array,) in results.items()}


def run_op(
    view: OpView, signature: NdSignature, mesh: Cuts, inputs: Mapping[str, Locals]
) -> dict[str, Locals]:
    """Run the op's reference on every rank and return the locals of its results.

    `view` has the logical shapes. Results are the outputs, or for an op that updates its inputs
    (optimizers) those inputs.

    Raises:
        RuleError: the op type has no rule.
        AutoDDLError: the signature cuts an operand unevenly.
    """
    rule = _rule(view)
    results: dict[str, Locals] = {}
    for rank, (local, start) in enumerate(_local_views(view, signature, mesh)):
        op = LocalOp(local, {name: inputs[name][rank] for name in view.inputs}, start)
        for name, value in rule.reference(op).items():
            results.setdefault(name, []).append(value)
    return results


def _local_views(
    view: OpView, signature: NdSignature, mesh: Cuts
) -> Iterator[tuple[OpView, dict[str, Shape]]]:
    """Yield for every rank the op with local shapes, and where the shards start."""
    for coords in itertools.product(*map(range, map(places, mesh))):
        shapes: dict[str, Shape] = {}
        start: dict[str, Shape] = {}
        for name in view.inputs + view.outputs:
            state = signature[name]
            in_turns = {s.dim for s in state if s.stride is not None}
            others = NdSbp(B if s.dim in in_turns else s for s in state)
            cut = shard_slices(view.shape[name], others, mesh, coords)
            shapes[name] = shard_shape(view.shape[name], state, mesh, coords)
            start[name] = tuple(
                NOWHERE if dim in in_turns else part.start for dim, part in enumerate(cut)
            )
        yield OpView(view.type, view.inputs, view.outputs, shapes, view.attr), start


def check_signature(
    view: OpView,
    signature: NdSignature,
    mesh: Cuts,
    rng: np.random.Generator,
    *,
    inputs: Mapping[str, Array] | None = None,
    expected: Mapping[str, Array] | None = None,
) -> str | None:
    """Compare an op on simulated ranks with the op on one device.

    `inputs` are whole arrays, drawn at random by default; `expected`, where known already, is what
    `on_one_device` makes of them. Returns None where the signature is right, else one line that
    says what differs.

    Raises:
        RuleError: the op type has no rule.
    """
    wholes = sample_inputs(view, rng) if inputs is None else inputs
    if expected is None:
        expected = on_one_device(view, wholes)
    try:
        locals_ = {name: shard(wholes[name], signature[name], mesh, rng) for name in view.inputs}
        with np.errstate(all="ignore"):  # a wrong signature may well take a root of -1
            results = run_op(view, signature, mesh, locals_)
    except (AutoDDLError, ValueError, IndexError) as error:
        return f"{_describe(view, signature, mesh)}: can't run on every rank: {error}"
    for name, whole in expected.items():
        fault = _compare(results[name], whole, signature[name], mesh)
        if fault is not None:
            return f"{_describe(view, signature, mesh)}: {name} {fault}"
    return None


def _compare(locals_: Locals, whole: Array, state: NdSbp, mesh: Cuts) -> str | None:
    if not np.all(np.isfinite(whole)):
        return "is not finite on one device: draw other inputs"
    try:
        got = assemble(locals_, state, mesh, whole.shape)
    except AutoDDLError as error:
        return str(error)
    if close(got, whole):
        return None
    worst = np.unravel_index(np.argmax(np.abs(got - whole)), whole.shape)
    place = tuple(int(i) for i in worst)
    return f"is {got[worst]:.6g} at {place} on the ranks, {whole[worst]:.6g} on one device"


def _describe(view: OpView, signature: NdSignature, mesh: Cuts) -> str:
    states = ", ".join(f"{name} {signature[name]}" for name in view.inputs + view.outputs)
    return f"{view.type} with {states} on mesh {'x'.join(map(str, mesh))}"


def valid_signatures(
    view: OpView, size: int, rng: np.random.Generator
) -> tuple[Mapping[str, Sbp], ...]:
    """Return every one-axis signature that is right on `size` devices, found by trial.

    All combinations of even states are tried, but for inputs that are not read or of which only the
    shape is: any state of theirs is right, so the signatures do not name them. What is right by
    accident of the random inputs is sorted out by more draws.

    Raises:
        RuleError: the op type has no rule.
    """
    with np.errstate(all="ignore"):  # a wrong signature may well take a root of -1
        found = list(_trial(view, size, rng).valid())
        for _ in range(MORE_DRAWS):
            again = _trial(view, size, rng)
            found = [right for signature in found for right in again.confirmed(signature)]
    return tuple(found)


def _trial(view: OpView, size: int, rng: np.random.Generator) -> Trial:
    rule, wholes = _rule(view), sample_inputs(view, rng)
    shape_only = rule.indices(view).shape_only
    locals_: dict[tuple[str, Sbp], Locals] = {}
    for name, array in wholes.items():
        given = np.full(array.shape, np.nan) if name in shape_only else array
        for state in even_states(array.shape, size):
            locals_[name, state] = shard(given, NdSbp((state,)), (size,), rng)
        if not np.all(np.isfinite(given)):
            locals_[name, P] = _not_finite_parts(array, size, rng)
    return Trial(rule, view, size, locals_, on_one_device(view, wholes), shape_only)


def _not_finite_parts(array: Array, size: int, rng: np.random.Generator) -> Locals:
    """Return parts of an array with inf or NaN, each of which one or several of them hold."""
    holds = rng.random((size, *array.shape)) < 0.5
    first = rng.integers(0, size, array.shape) == np.arange(size).reshape(-1, *[1] * array.ndim)
    finite = np.isfinite(array)
    parts = shard(np.where(finite, array, 0.0), NdSbp((P,)), (size,), rng)
    return [
        np.where(finite | ~held, p, array) for p, held in zip(parts, holds | first, strict=True)
    ]


def _rule(view: OpView) -> OpRule:
    rule = find(view.type)
    if rule is None:
        raise RuleError(f"op type {view.type}: no rule, so no reference; register one first")
    return rule
