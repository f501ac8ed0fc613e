"""The state of a tensor along one mesh axis: S(dim[, stride]), B or P(sum|max|min)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from autoddl.errors import AutoDDLError


@dataclass(frozen=True, eq=False)
class Sbp:
    """State of a tensor along one mesh axis: split along `dim`, broadcast, or partial values.

    `stride` is None for one piece per device, `reduction` says what makes the whole of the parts of P,
    `turn` is above 0 where the axis cuts its dim after axes further inside. Equal values are one
    object, so comparing and hashing cost nothing.
    """

    kind: str
    dim: int = -1
    stride: int | None = None
    reduction: str = "sum"
    turn: int = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Sbp:
        """Return the one object of these fields."""
        values = {"dim": -1, "stride": None, "reduction": "sum", "turn": 0}
        values |= dict(zip(("kind", *values), args, strict=False)) | kwargs
        key = tuple(values.values())
        if key not in _INTERNED:
            _INTERNED[key] = object.__new__(cls)
        return _INTERNED[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return Sbp, (self.kind, self.dim, self.stride, self.reduction, self.turn)

    def __str__(self) -> str:
        if self.kind == "P":
            return "P" if self.reduction == "sum" else f"P({self.reduction})"
        if self.kind == "B":
            return "B" if self.reduction == "sum" else "B*"
        cut = f"S{self.dim}" if self.stride is None else f"S({self.dim}, {self.stride})"
        return cut + "'" * self.turn

    __repr__ = __str__

    def __lt__(self, other: Sbp) -> bool:
        return str(self) < str(other)

    @property
    def is_split(self) -> bool:
        """Tell whether this axis cuts a dim."""
        return self.kind == "S"

    @property
    def is_partial(self) -> bool:
        """Tell whether the devices of this axis hold parts that are to be reduced."""
        return self.kind == "P"

    def later(self, turn: int) -> Sbp:
        """Return this cut in another turn."""
        return self if turn == self.turn else Sbp("S", self.dim, self.stride, "sum", turn)


_INTERNED: dict[tuple[Any, ...], Sbp] = {}

B = Sbp("B")
P = Sbp("P")
P_MAX = Sbp("P", reduction="max")
P_MIN = Sbp("P", reduction="min")
OWN = Sbp("B", reduction="none")
"""B to the engine, though every device has a value of its own: what approximate cuts make."""


@cache
def S(dim: int, stride: int | None = None) -> Sbp:
    """Return the state that cuts dim `dim` (0-based), in turns of `stride` elements if given."""
    if dim < 0:
        raise AutoDDLError(f"S({dim}): split dims are counted from 0")
    if stride is not None and stride < 1:
        raise AutoDDLError(f"S({dim}, {stride}): a stride is a number of elements, at least 1")
    return Sbp("S", dim, stride)


def axis_states(ndim: int, *, partial: bool = True, own: bool = False) -> tuple[Sbp, ...]:
    """Return every plain state of a tensor along one mesh axis: B, S0 … S(ndim-1), P(sum).

    `own` adds the state of values that differ between devices (OWN).
    """
    return (B, *(S(d) for d in range(ndim)), *((P,) if partial else ()), *((OWN,) if own else ()))
