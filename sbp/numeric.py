"""The NumPy oracle: shard tensors, box them and run ops on simulated ranks, and compare.

Locals are lists by rank, in row-major order of the mesh coordinates. Everything is float64 (indices
are integers), with random and asymmetric data, so that nothing is right by accident.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autoddl.errors import AutoDDLError, RuleError
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, boxing
from autoddl.sbp.mesh import rank_groups
from autoddl.sbp.rules.registry import Array, LocalOp, OpRule, OpView, Shape, find, signatures
from autoddl.sbp.shards import check_state, joined, pieces, shard_shape, shard_slices
from autoddl.sbp.state import B, NdSbp, P, Sbp, broadcast
from autoddl.sbp.trial import Trial, agree, even_states

Locals = list[Array]
NdSignature = Mapping[str, NdSbp]

MORE_DRAWS = 4  # of inputs, to sort out what is right by accident
TOLERANCE = 1e-9  # relative and absolute: float64 sums in another order stay far below it


def shard(array: Array, state: NdSbp, mesh: Sequence[int], rng: np.random.Generator) -> Locals:
    """Return what every rank holds of `array`: parts of P are random and reduce to it.

    Raises:
        AutoDDLError: the array can't be in that state.
    """
    check_state(state, array.shape, mesh)
    partial = [i for i, sbp in enumerate(state) if sbp.is_partial]
    counts = [mesh[i] for i in partial]
    reduction = state[partial[0]].reduction if partial else "sum"
    parts = _random_parts(array, math.prod(counts), reduction, rng)
    cuts = _cuts(array.shape, state, mesh)
    locals_ = []
    for coords in itertools.product(*map(range, mesh)):
        part = parts[_row_major([coords[i] for i in partial], counts)]
        locals_.append(part[_own(cuts, state, coords)])
    return locals_


def _random_parts(array: Array, count: int, reduction: str, rng: np.random.Generator) -> Locals:
    parts: Locals
    if count == 1:
        return [array]
    if array.dtype.kind in "iu":
        parts = [rng.integers(-9, 10, array.shape) for _ in range(count)]
    else:
        parts = [rng.normal(0.3, 1.0, array.shape) for _ in range(count)]
    if reduction == "sum":
        return [*parts[1:], array - sum(parts[1:])]
    winner = rng.integers(0, count, array.shape)
    away = -1 if reduction == "max" else 1
    return [
        np.where(winner == k, array, array + away * np.abs(part)) for k, part in enumerate(parts)
    ]


def assemble(
    locals_: Sequence[Array], state: NdSbp, mesh: Sequence[int], shape: Sequence[int]
) -> Array:
    """Return the whole tensor that the locals stand for.

    Raises:
        AutoDDLError: a local has the wrong shape, or replicas differ where the state says B.
    """
    cuts = _cuts(shape, state, mesh)
    partial = [i for i, sbp in enumerate(state) if sbp.is_partial]
    copied = [i for i, sbp in enumerate(state) if sbp.kind == "B"]
    counts = [mesh[i] for i in partial]
    parts = [np.zeros(tuple(shape), locals_[0].dtype) for _ in range(math.prod(counts))]
    first: dict[tuple[int, ...], Array] = {}
    for rank, coords in enumerate(itertools.product(*map(range, mesh))):
        expected = shard_shape(shape, state, mesh, coords)
        if locals_[rank].shape != expected:
            raise AutoDDLError(
                f"rank {rank} holds shape {locals_[rank].shape}; {state} of {tuple(shape)} on mesh "
                f"{tuple(mesh)} gives {expected}"
            )
        place = tuple(0 if i in copied else c for i, c in enumerate(coords))
        if not _close(first.setdefault(place, locals_[rank]), locals_[rank]):
            raise AutoDDLError(f"replicas differ along an axis where {state} says B")
        part = parts[_row_major([coords[i] for i in partial], counts)]
        part[_own(cuts, state, coords)] = locals_[rank]
    return _REDUCE[state[partial[0]].reduction](parts) if partial else parts[0]


_REDUCE = {
    "sum": lambda parts: np.sum(parts, axis=0),
    "max": lambda parts: np.max(parts, axis=0),
    "min": lambda parts: np.min(parts, axis=0),
}


def _row_major(coords: Sequence[int], sizes: Sequence[int]) -> int:
    index = 0
    for coord, size in zip(coords, sizes, strict=True):
        index = index * size + coord
    return index


_Cuts = list[tuple[tuple[int, ...], dict[tuple[int, ...], Array]]]


def _cuts(shape: Sequence[int], state: NdSbp, mesh: Sequence[int]) -> _Cuts:
    """Return for each dim the axes that cut it and the indices that each of their places holds."""
    tables: _Cuts = []
    for dim, size in enumerate(shape):
        held: dict[tuple[int, ...], Array] = {(): np.arange(size)}
        axes = state.cutting(dim)
        for axis in axes:
            held = {
                (*place, k): piece
                for place, indices in held.items()
                for k, piece in enumerate(pieces(indices, state[axis], mesh[axis], 0))
            }
        tables.append((axes, held))
    return tables


def _own(cuts: _Cuts, state: NdSbp, coords: Sequence[int]) -> Any:
    """Return the index of one device's elements, to be used on the whole array."""
    return np.ix_(*(held[tuple(coords[axis] for axis in axes)] for axes, held in cuts))


def _close(a: Array, b: Array) -> bool:
    return a is b or bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE))


def run_boxing(
    locals_: Sequence[Array],
    src: NdSbp,
    dst: NdSbp,
    shape: Sequence[int],
    mesh: Sequence[int],
) -> Locals:
    """Perform one boxing primitive, each group with nothing but what its members hold.

    Raises:
        AutoDDLError: no single primitive takes `src` to `dst`.
    """
    box = boxing(src, dst, shape, mesh, uneven=True)
    if box is None:
        raise AutoDDLError(
            f"boxing {src} to {dst} of shape {tuple(shape)} on mesh {tuple(mesh)}: no single "
            "primitive does it; go through a legal state in between"
        )
    result = list(locals_)
    before, after = src[box.axes[0]], dst[box.axes[0]]
    for group in rank_groups(mesh, box.axes):
        outcome = _exchange(box.primitive, [locals_[rank] for rank in group], before, after)
        for rank, local in zip(group, outcome, strict=True):
            result[rank] = local
    return result


def _exchange(primitive: str, members: Locals, before: Sbp, after: Sbp) -> Locals:
    """Run a primitive in one group; `members` are in the order of the mesh axes."""
    size = len(members)
    if primitive == ALL_REDUCE:
        return [_REDUCE[before.reduction](members)] * size
    if primitive == ALL_GATHER:
        return [joined(members, before, before.dim)] * size
    if primitive == REDUCE_SCATTER:
        return pieces(_REDUCE[before.reduction](members), after, size, after.dim)
    if primitive == ALL_TO_ALL:
        return _all_to_all(members, before, after)
    if after.is_split:
        return [pieces(member, after, size, after.dim)[k] for k, member in enumerate(members)]
    neutral = {"sum": 0.0, "max": -np.inf, "min": np.inf}[after.reduction]
    if before.kind == "B":
        return [m if k == 0 else np.full_like(m, neutral) for k, m in enumerate(members)]
    nothing = [np.full_like(member, neutral) for member in members]
    return [
        joined([*nothing[:k], member, *nothing[k + 1 :]], before, before.dim)
        for k, member in enumerate(members)
    ]


def _all_to_all(members: Locals, before: Sbp, after: Sbp) -> Locals:
    """Send every member its piece of the own shard, and put what comes in together."""
    size = len(members)
    if before.dim != after.dim:
        sent = [pieces(member, after, size, after.dim) for member in members]
        return [joined([row[k] for row in sent], before, before.dim) for k in range(size)]
    dim = before.dim
    length = sum(member.shape[dim] for member in members)
    held = pieces(np.arange(length), before, size, 0)
    wanted = pieces(np.arange(length), after, size, 0)
    received = []
    for indices in wanted:
        shape = (*members[0].shape[:dim], len(indices), *members[0].shape[dim + 1 :])
        local = np.empty(shape, members[0].dtype)
        for member, own in zip(members, held, strict=True):
            _, here, there = np.intersect1d(indices, own, return_indices=True)
            local[(slice(None),) * dim + (here,)] = member.take(there, axis=dim)
        received.append(local)
    return received


def run_path(
    locals_: Sequence[Array],
    src: NdSbp,
    path: Sequence[NdSbp],
    shape: Sequence[int],
    mesh: Sequence[int],
) -> Locals:
    """Perform the boxings of a path one after the other, from `src` on."""
    result, here = list(locals_), src
    for state in path:
        result, here = run_boxing(result, here, state, shape, mesh), state
    return result


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
    view: OpView, signature: NdSignature, mesh: Sequence[int], inputs: Mapping[str, Locals]
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
    view: OpView, signature: NdSignature, mesh: Sequence[int]
) -> Iterator[tuple[OpView, dict[str, Shape]]]:
    """Yield for every rank the op with local shapes, and where the shards start."""
    for coords in itertools.product(*map(range, mesh)):
        shapes: dict[str, Shape] = {}
        start: dict[str, Shape] = {}
        for name in view.inputs + view.outputs:
            cut = shard_slices(view.shape[name], signature[name], mesh, coords)
            shapes[name] = tuple(part.stop - part.start for part in cut)
            start[name] = tuple(part.start for part in cut)
        yield OpView(view.type, view.inputs, view.outputs, shapes, view.attr), start


def check_signature(
    view: OpView,
    signature: NdSignature,
    mesh: Sequence[int],
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


def _compare(locals_: Locals, whole: Array, state: NdSbp, mesh: Sequence[int]) -> str | None:
    if not np.all(np.isfinite(whole)):
        return "is not finite on one device: draw other inputs"
    try:
        got = assemble(locals_, state, mesh, whole.shape)
    except AutoDDLError as error:
        return str(error)
    if _close(got, whole):
        return None
    worst = np.unravel_index(np.argmax(np.abs(got - whole)), whole.shape)
    place = tuple(int(i) for i in worst)
    return f"is {got[worst]:.6g} at {place} on the ranks, {whole[worst]:.6g} on one device"


def _describe(view: OpView, signature: NdSignature, mesh: Sequence[int]) -> str:
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


def missing_signatures(
    view: OpView, size: int, rng: np.random.Generator
) -> tuple[Mapping[str, Sbp], ...]:
    """Return the one-axis signatures that are right on `size` devices though the rule lacks them.

    Inputs that are not read, or of which only the shape is, are B.

    Raises:
        RuleError: the op type has no rule.
    """
    found = valid_signatures(view, size, rng)
    known = signatures(view)
    blank = dict.fromkeys(view.inputs + view.outputs, B)
    return tuple(
        {**blank, **signature}
        for signature in found
        if not any(agree(signature, ours) for ours in known)
    )


def _rule(view: OpView) -> OpRule:
    rule = find(view.type)
    if rule is None:
        raise RuleError(f"op type {view.type}: no rule, so no reference; register one first")
    return rule
