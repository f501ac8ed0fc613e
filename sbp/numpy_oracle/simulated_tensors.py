"""The NumPy oracle of tensors: shard them on simulated ranks, put them together again.

Locals are lists by rank, in row-major order of the mesh coordinates. Everything is float64 (indices
are integers), with random and asymmetric parts, so that nothing is right by accident.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.sbp.shards import check_state, pieces, shard_shape
from autoddl.sbp.shares import Cuts, places
from autoddl.sbp.state import NdSbp

Array = npt.NDArray[Any]
Locals = list[Array]

TOLERANCE = 1e-9  # relative and absolute: float64 sums in another order stay far below it


def shard(array: Array, state: NdSbp, mesh: Cuts, rng: np.random.Generator) -> Locals:
    """Return what every rank holds of `array`: parts of P are random and reduce to it.

    Raises:
        AutoDDLError: the array can't be in that state.
    """
    check_state(state, array.shape, mesh)
    partial = [i for i, sbp in enumerate(state) if sbp.is_partial]
    counts = [places(mesh[i]) for i in partial]
    reduction = state[partial[0]].reduction if partial else "sum"
    parts = _random_parts(array, math.prod(counts), reduction, rng)
    cuts = _cuts(array.shape, state, mesh)
    locals_ = []
    for coords in itertools.product(*map(range, map(places, mesh))):
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


def assemble(locals_: Sequence[Array], state: NdSbp, mesh: Cuts, shape: Sequence[int]) -> Array:
    """Return the whole tensor that the locals stand for.

    Raises:
        AutoDDLError: a local has the wrong shape, or replicas differ where the state says B.
    """
    cuts = _cuts(shape, state, mesh)
    partial = [i for i, sbp in enumerate(state) if sbp.is_partial]
    copied = [i for i, sbp in enumerate(state) if sbp.kind == "B"]
    counts = [places(mesh[i]) for i in partial]
    parts = [np.zeros(tuple(shape), locals_[0].dtype) for _ in range(math.prod(counts))]
    first: dict[tuple[int, ...], Array] = {}
    for rank, coords in enumerate(itertools.product(*map(range, map(places, mesh)))):
        expected = shard_shape(shape, state, mesh, coords)
        if locals_[rank].shape != expected:
            raise AutoDDLError(
                f"rank {rank} holds shape {locals_[rank].shape}; {state} of {tuple(shape)} on mesh "
                f"{tuple(mesh)} gives {expected}"
            )
        place = tuple(0 if i in copied else c for i, c in enumerate(coords))
        if not close(first.setdefault(place, locals_[rank]), locals_[rank]):
            raise AutoDDLError(f"replicas differ along an axis where {state} says B")
        part = parts[_row_major([coords[i] for i in partial], counts)]
        part[_own(cuts, state, coords)] = locals_[rank]
    return REDUCE[state[partial[0]].reduction](parts) if partial else parts[0]


REDUCE = {
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


def _cuts(shape: Sequence[int], state: NdSbp, mesh: Cuts) -> _Cuts:
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


def close(a: Array, b: Array) -> bool:
    """Tell whether two arrays are the same but for rounding."""
    return a is b or bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE))
