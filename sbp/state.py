"""Tensor states: S(dim), B or P for every axis of a mesh.

Where several axes cut one dim the order is the mesh's: the outer axis cuts first, the inner axis
cuts each piece again. Shards are even; a state that would cut a dim unevenly does not exist here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from autoddl.errors import AutoDDLError


@dataclass(frozen=True, order=True)
class Sbp:
    """State of a tensor along one mesh axis: split along `dim`, broadcast, or partial sum."""

    kind: str
    dim: int = -1
    reduction: str = "sum"

    def __str__(self) -> str:
        if self.kind == "P" and self.reduction != "sum":
            return f"P({self.reduction})"
        return f"S{self.dim}" if self.kind == "S" else self.kind

    __repr__ = __str__

    @property
    def is_split(self) -> bool:
        """Tell whether this axis cuts a dim."""
        return self.kind == "S"


B = Sbp("B")
P = Sbp("P")
P_MAX = Sbp("P", reduction="max")
P_MIN = Sbp("P", reduction="min")


@cache
def S(dim: int) -> Sbp:
    """Return the state that cuts dim `dim` (0-based, not negative)."""
    if dim < 0:
        raise AutoDDLError(f"S({dim}): split dims are counted from 0")
    return Sbp("S", dim)


class NdSbp(tuple[Sbp, ...]):
    """State of a tensor on a mesh: one Sbp per axis, outermost first. Prints as "(S0, B)"."""

    __slots__ = ()

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self)) + ")"

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str) -> NdSbp:
        """Read "(S0, B)", "S(0),B" or "P".

        Raises:
            AutoDDLError: an entry is none of S<dim>, S(<dim>), B, P.
        """
        body = text.strip()
        if body.startswith("(") and body.endswith(")"):
            body = body[1:-1]
        states = []
        for item in body.split(","):
            match = re.fullmatch(r"\s*(?:S\(?(\d+)\)?|([BP]))\s*", item)
            if match is None:
                raise AutoDDLError(
                    f"state {text!r}: got {item.strip()!r}; allowed are S<dim>, B, P"
                )
            states.append(S(int(match[1])) if match[1] else (B if match[2] == "B" else P))
        return cls(states)

    def replace(self, axis: int, state: Sbp) -> NdSbp:
        """Return this state with another entry on one axis."""
        return NdSbp((*self[:axis], state, *self[axis + 1 :]))


def broadcast(ndim: int) -> NdSbp:
    """Return the state that is B on every one of `ndim` axes."""
    return NdSbp((B,) * ndim)


def local_shape(
    shape: Sequence[int], state: Iterable[Sbp], mesh: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the shape that each device holds, or None where a dim is not cut evenly.

    `shape` is the logical shape, `mesh` the axis sizes. A split beyond the rank gives None as well.
    """
    dims = list(shape)
    for sbp, size in zip(state, mesh, strict=True):
        if sbp.is_split:
            if sbp.dim >= len(dims) or dims[sbp.dim] % size or dims[sbp.dim] < size:
                return None
            dims[sbp.dim] //= size
    return tuple(dims)


def shard_slices(
    shape: Sequence[int], state: Iterable[Sbp], mesh: Sequence[int], coords: Sequence[int]
) -> tuple[slice, ...]:
    """Return which part of the logical tensor the device at `coords` holds, one slice per dim.

    Raises:
        AutoDDLError: the state does not cut the shape evenly.
    """
    start, dims = [0] * len(shape), list(shape)
    for sbp, size, coord in zip(state, mesh, coords, strict=True):
        if sbp.is_split:
            if sbp.dim >= len(dims) or dims[sbp.dim] % size:
                raise AutoDDLError(
                    f"state ({', '.join(map(str, state))}) does not cut shape {tuple(shape)} "
                    f"evenly on mesh {tuple(mesh)}: choose sizes that divide, or another state"
                )
            dims[sbp.dim] //= size
            start[sbp.dim] += coord * dims[sbp.dim]
    return tuple(slice(a, a + n) for a, n in zip(start, dims, strict=True))


def axis_states(ndim: int, *, partial: bool = True) -> tuple[Sbp, ...]:
    """Return every state of an `ndim`-dim tensor along one mesh axis: B, S0 … S(ndim-1), P."""
    return (B, *(S(d) for d in range(ndim)), *((P,) if partial else ()))


def all_states(
    shape: Sequence[int], mesh: Sequence[int], *, partial: bool = True
) -> Iterator[NdSbp]:
    """Yield every state that cuts `shape` evenly on a mesh with these axis sizes."""
    for combo in itertools.product(axis_states(len(shape), partial=partial), repeat=len(mesh)):
        if local_shape(shape, combo, mesh) is not None:
            yield NdSbp(combo)
