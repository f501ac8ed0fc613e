"""Index maps and samplers that several operator families share."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from autoddl.sbp.rules.registry import Array, Dims, OpView, Shape


def dim_names(ndim: int, prefix: str = "d") -> Dims:
    """Return one index name per dim: d0, d1, …"""
    return tuple(f"{prefix}{i}" for i in range(ndim))


def uncut(view: OpView, operands: Iterable[str]) -> dict[str, Dims]:
    """Return dims that can't be cut for these operands."""
    return {name: (None,) * len(view.shape[name]) for name in operands}


def same_dims(view: OpView, operands: Iterable[str]) -> dict[str, Dims]:
    """Return the dims of operands that all have one shape and run together."""
    return {name: dim_names(len(view.shape[name])) for name in operands}


def align(shape: Shape, target: Shape) -> Dims:
    """Name the dims of `shape` after those of `target`, which it is broadcast to from the right.

    A dim of size 1 where the target's is larger is repeated and stays whole.
    """
    offset = len(target) - len(shape)
    return tuple(
        f"d{i + offset}" if size == target[i + offset] else None for i, size in enumerate(shape)
    )


def renamed(dims: Dims, indices: Collection[str | None]) -> Dims:
    """Rename some of the indices d0, d1, … to r0, r1, …: those that an engine treats differently."""
    return tuple(f"r{i[1:]}" if i is not None and i in indices else i for i in dims)


def reduced_dims(small: Shape, large: Shape, axes: Sequence[int]) -> Dims:
    """Name the dims of `small`, which is `large` with `axes` summed, after those of `large`.

    The summed dims may have been dropped, all kept with size 1, or (as a broadcast operand has it)
    dropped on the left and kept elsewhere.
    """
    kept = [i for i in range(len(large)) if i not in axes]
    if len(small) == len(kept):
        return tuple(f"d{i}" for i in kept)
    offset = len(large) - len(small)
    return tuple(f"d{i}" if i in kept else None for i in range(offset, len(large)))


def axes_of(view: OpView, attribute: str, operand: str) -> tuple[int, ...]:
    """Return an attribute's axes counted from 0; an empty list means all dims of `operand`."""
    ndim = len(view.shape[operand])
    axes: Any = view.attr[attribute]
    return tuple(axis % ndim for axis in axes) or tuple(range(ndim))


def elements(shape: Shape) -> float:
    """Return the number of elements."""
    return float(math.prod(shape))


def no_flops(view: OpView) -> float:
    """Count nothing: the op only moves memory."""
    return 0.0


def positive(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw values in [0.5, 2): roots, logarithms and divisors are well conditioned there."""
    return rng.uniform(0.5, 2.0, view.shape[operand])
