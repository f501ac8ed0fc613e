"""Tensor states: S(dim[, stride]), B or P(sum|max|min) for every axis of a mesh.

Where several axes cut one dim, the order in which they cut is part of the state. The default is the
mesh's: the outer axis cuts first, the inner axis cuts each piece again. A prime marks an axis that
cuts in a later turn: in (S0', S0) the second axis cuts first. OneFlow executes only the mesh's order
and no strides; the planner stays inside that unless it is told that no engine runs the plan.

S(dim, stride) deals the elements of a dim out in turns of `stride` consecutive ones (Rhino §4.1);
plain S gives every device one piece, that is the largest stride. Plain splits may be uneven: the
first devices then hold one element more, as OneFlow's balanced splitter has it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.text import Reader

REDUCTIONS = ("sum", "max", "min")
Ints = npt.NDArray[np.int64]

_ALLOWED = "allowed are S<dim>, S(<dim>), S(<dim>, <stride>), B, B*, P, P(max), P(min)"


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


class NdSbp(tuple[Sbp, ...]):
    """State of a tensor on a mesh: one Sbp per axis, outermost first. Prints as "(S0, B)".

    Turns are kept as small as possible, so that equal states compare equal.

    Raises:
        AutoDDLError: partial values with different reductions, which have no well-defined whole.
    """

    __slots__ = ()

    def __new__(cls, states: Iterable[Sbp]) -> NdSbp:
        """Return the state with canonical turns."""
        self = super().__new__(cls, states)
        for sbp in self:
            if sbp.turn or sbp.reduction != "sum":
                return super().__new__(cls, _checked(self))
        return self

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self)) + ")"

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str, mesh: Mesh | None = None) -> NdSbp:
        """Read "(S0, B)", "S(0),B", "P(max)", "(S0', S0)" or, given the mesh, "S0:(1,2), B:(2,2)".

        With the mesh the number of entries is checked, too.

        Raises:
            AutoDDLError: not a state; the error quotes the text and marks the place.
        """
        reader = Reader("state", text, _ALLOWED)
        open_ = reader.take(r"\(") is not None
        entries: list[tuple[Sbp, tuple[int, ...] | None]] = [_entry(reader)]
        while reader.take(",") is not None:
            entries.append(_entry(reader))
        if open_:
            reader.need(r"\)", "')'")
        if not reader.done:
            raise reader.error("',' or the end expected")
        if any(counts is not None for _, counts in entries):
            return cls(_laid_out(reader, entries, mesh))
        if mesh is not None and len(entries) != mesh.ndim:
            raise AutoDDLError(
                f"state {text!r}: {len(entries)} entries, mesh {mesh} has {mesh.ndim} axes; give one "
                "entry per axis"
            )
        return cls(sbp for sbp, _ in entries)

    def describe(self, mesh: Mesh) -> str:
        """Return AutoDDL's notation, "S0:(1,2), B:(2,2)": how many of each level's devices.

        Terms that stand further left take the outer axes of a level; `parse` reads it back.
        """
        levels = [level.name for level in mesh.cluster.levels]
        rows = [
            [
                (sbp, math.prod(size for _, size in run))
                for sbp, run in itertools.groupby(
                    (pair for pair, axis in zip(_pairs(self, mesh), mesh.axes, strict=True)
                     if axis.level == level),
                    key=lambda pair: pair[0],
                )
            ]
            for level in levels
        ]  # fmt: skip
        terms = []
        while any(rows):
            sbp = _next_term(rows)
            taken = [row.pop(0)[1] if row and row[0][0] is sbp else 1 for row in rows]
            terms.append(f"{sbp}:({','.join(map(str, taken))})")
        return ", ".join(terms)

    def replace(self, axis: int, state: Sbp) -> NdSbp:
        """Return this state with another entry on one axis."""
        return NdSbp((*self[:axis], state, *self[axis + 1 :]))

    @property
    def executed(self) -> NdSbp:
        """Return the state that the engine is told: B where every device has its own value."""
        return NdSbp(B if s is OWN else s for s in self) if OWN in self else self

    def cutting(self, dim: int) -> tuple[int, ...]:
        """Return the axes that cut a dim, in the order in which they cut."""
        axes = [i for i, sbp in enumerate(self) if sbp.dim == dim]
        return tuple(sorted(axes, key=lambda i: (self[i].turn, i)))


def broadcast(ndim: int) -> NdSbp:
    """Return the state that is B on every one of `ndim` axes."""
    return NdSbp((B,) * ndim)


def ordered(states: Sequence[Sbp], order: Sequence[int]) -> NdSbp:
    """Return the state whose axes cut in the given order, e.g. order (1, 0): the second one first.

    Raises:
        AutoDDLError: `order` is not a permutation of the axes.
    """
    if sorted(order) != list(range(len(states))):
        raise AutoDDLError(
            f"state {NdSbp(states)}: order {tuple(order)}; name each of the {len(states)} axes once"
        )
    position = {axis: i for i, axis in enumerate(order)}
    return NdSbp(s.later(position[i]) if s.is_split else s for i, s in enumerate(states))


def _checked(states: NdSbp) -> tuple[Sbp, ...]:
    """Return the states with the smallest turns that say the same."""
    if len({sbp.reduction for sbp in states if sbp.is_partial}) > 1:
        raise AutoDDLError(
            f"state {states}: partial values of different reductions have no whole; reduce one first"
        )
    result = list(states)
    for dim in {sbp.dim for sbp in states if sbp.turn}:
        turn, before = 0, -1
        for axis in states.cutting(dim):
            turn += axis < before
            result[axis], before = states[axis].later(turn), axis
    return tuple(result)


def _entry(reader: Reader) -> tuple[Sbp, tuple[int, ...] | None]:
    """Read one entry and, in AutoDDL's notation, its device counts per level."""
    kind = reader.need(r"[SBP](?![A-Za-z_])", "S, B or P")
    sbp = _split(reader) if kind == "S" else (_copied(reader) if kind == "B" else _partial(reader))
    if reader.take(":") is None:
        return sbp, None
    reader.need(r"\(", "'('")
    counts = [int(reader.need(r"[1-9]\d*", "a number of devices"))]
    while reader.take(",") is not None:
        counts.append(int(reader.need(r"[1-9]\d*", "a number of devices")))
    reader.need(r"\)", "')'")
    return sbp, tuple(counts)


def _copied(reader: Reader) -> Sbp:
    return B if reader.take(r"\*") is None else OWN


def _split(reader: Reader) -> Sbp:
    before, stride = reader.position, None
    bracket = reader.take(r"\(") is not None
    dim = int(reader.need(r"\d+", "a dim"))
    if bracket:
        if reader.take(",") is not None:
            stride = int(reader.need(r"[1-9]\d*", "a stride"))
        reader.need(r"\)", "')'")
    elif reader.text[before : before + 1].isspace():
        raise reader.error("a dim expected", before)
    return S(dim, stride).later(len(reader.take("'+") or ""))


def _partial(reader: Reader) -> Sbp:
    if reader.take(r"\(") is None:
        return P
    reduction = reader.need("sum|max|min", "sum, max or min")
    reader.need(r"\)", "')'")
    return Sbp("P", reduction=reduction)


def _pairs(state: NdSbp, mesh: Mesh) -> list[tuple[Sbp, int]]:
    """Return (entry, axis size); axes of one device count as B."""
    sizes = mesh.shape
    return [(s if n > 1 else B, n) for s, n in zip(state, sizes, strict=True)]


def _next_term(rows: Sequence[Sequence[tuple[Sbp, int]]]) -> Sbp:
    """Choose the next term: one that a level needs now and no level only later, if there is one."""
    heads = [row[0][0] for row in rows if row]
    return min(
        heads,
        key=lambda sbp: (
            sum(any(s is sbp for s, _ in row[1:]) and row[0][0] is not sbp for row in rows if row),
            heads.index(sbp),
        ),
    )


def _laid_out(
    reader: Reader, entries: Sequence[tuple[Sbp, tuple[int, ...] | None]], mesh: Mesh | None
) -> list[Sbp]:
    """Lay AutoDDL's terms on the axes of a mesh: within a level from the outermost axis inwards."""
    if mesh is None:
        raise AutoDDLError(f"state {reader.text!r}: device counts need a mesh; give one")
    levels = mesh.cluster.levels
    for sbp, counts in entries:
        if counts is None or len(counts) != len(levels):
            given = "none" if counts is None else str(len(counts))
            raise AutoDDLError(
                f"state {reader.text!r}: {sbp} has {given} device counts, cluster {mesh.cluster} has "
                f"{len(levels)} levels; give each term one count per level"
            )
    states: list[Sbp] = []
    for number, level in enumerate(levels):
        sizes = [axis.size for axis in mesh.axes if axis.level == level.name]
        wanted = [(sbp, counts[number]) for sbp, counts in entries if counts is not None]
        states += _on_level(reader, str(level), sizes, wanted)
    return states


def _on_level(
    reader: Reader, level: str, sizes: list[int], wanted: list[tuple[Sbp, int]]
) -> list[Sbp]:
    states, axes = [], list(sizes)
    for sbp, count in wanted:
        while axes and (count > 1 or axes[0] == 1):
            size = axes.pop(0)
            if count % size:
                raise _no_fit(reader, level, sizes)
            states.append(sbp if size > 1 else B)
            count //= size
        if count > 1:
            raise _no_fit(reader, level, sizes)
    if axes:
        raise _no_fit(reader, level, sizes)
    return states


def _no_fit(reader: Reader, level: str, sizes: Sequence[int]) -> AutoDDLError:
    return AutoDDLError(
        f"state {reader.text!r}: the counts in level {level} do not fill its axes {tuple(sizes)} from "
        "left to right; every term must take whole axes"
    )


def check_state(state: NdSbp, shape: Sequence[int], mesh: Sequence[int]) -> None:
    """Raise AutoDDLError where a tensor of this logical shape can't be in a state, and say why.

    Plain splits may be uneven as long as every device gets an element.
    """
    where = f"state {state} of shape {tuple(shape)} on mesh {'x'.join(map(str, mesh))}"
    if len(state) != len(mesh):
        raise AutoDDLError(f"{where}: {len(state)} entries for {len(mesh)} axes; give one per axis")
    sizes = list(shape)
    for sbp in state:
        if sbp.is_split and sbp.dim >= len(shape):
            dims = f"0..{len(shape) - 1}" if shape else "none, it is a scalar"
            raise AutoDDLError(f"{where}: {sbp} cuts dim {sbp.dim}; the tensor's dims are {dims}")
    for axis in _cut_order(state):
        sbp, size, left = state[axis], mesh[axis], sizes[state[axis].dim]
        if sbp.stride is not None and left % (size * sbp.stride):
            raise AutoDDLError(
                f"{where}: {sbp} deals {left} elements to {size} devices in turns of {sbp.stride}; "
                f"the stride must divide {left / size:g}"
            )
        if left < size:
            raise AutoDDLError(
                f"{where}: {sbp} cuts {left} elements into {size} pieces; choose a longer dim"
            )
        sizes[sbp.dim] = left // size


def _cut_order(state: Sequence[Sbp]) -> list[int]:
    """Return the axes that cut, earlier turns first."""
    return sorted(
        (i for i, s in enumerate(state) if s.kind == "S"), key=lambda i: (state[i].turn, i)
    )


def local_shape(
    shape: Sequence[int], state: Iterable[Sbp], mesh: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the shape that each device holds, or None where a dim is not cut evenly.

    `shape` is the logical shape, `mesh` the axis sizes. A split beyond the rank gives None as well.
    """
    dims = list(shape)
    cuts = list(zip(state, mesh, strict=True))
    for sbp, size in sorted(cuts, key=_turn) if any(s.turn for s, _ in cuts) else cuts:
        if sbp.kind == "S":
            dim = sbp.dim
            if dim >= len(dims) or dims[dim] % (size * (sbp.stride or 1)) or dims[dim] < size:
                return None
            dims[dim] //= size
    return tuple(dims)


def _turn(cut: tuple[Sbp, int]) -> int:
    return cut[0].turn


def shard_shape(
    shape: Sequence[int], state: NdSbp, mesh: Sequence[int], coords: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape that the device at `coords` holds; uneven splits give the first ones more."""
    dims = list(shape)
    for axis in _cut_order(state):
        dim, (each, more) = state[axis].dim, divmod(dims[state[axis].dim], mesh[axis])
        dims[dim] = each + (coords[axis] < more)
    return tuple(dims)


def shard_indices(
    shape: Sequence[int], state: NdSbp, mesh: Sequence[int], coords: Sequence[int]
) -> tuple[Ints, ...]:
    """Return which elements the device at `coords` holds: for each dim its indices, in local order.

    `array[np.ix_(*indices)]` is the shard.

    Raises:
        AutoDDLError: the tensor can't be in that state.
    """
    check_state(state, shape, mesh)
    indices = [np.arange(size) for size in shape]
    for axis in _cut_order(state):
        sbp = state[axis]
        indices[sbp.dim] = pieces(indices[sbp.dim], sbp, mesh[axis], axis=0)[coords[axis]]
    return tuple(indices)


def pieces(array: npt.NDArray[Any], cut: Sbp, size: int, axis: int) -> list[npt.NDArray[Any]]:
    """Return what each of `size` devices gets of an array that is cut along `axis` as `cut` says."""
    if cut.stride is None:
        return np.array_split(array, size, axis=axis)
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    turns = array.reshape(*before, -1, size, cut.stride, *after)
    return [turns.take(k, axis=axis + 1).reshape(*before, -1, *after) for k in range(size)]


def joined(parts: Sequence[npt.NDArray[Any]], cut: Sbp, axis: int) -> npt.NDArray[Any]:
    """Return the array of which `parts` are the pieces; the inverse of `pieces`."""
    if cut.stride is None:
        return np.concatenate(parts, axis=axis)
    before, after = parts[0].shape[:axis], parts[0].shape[axis + 1 :]
    turns = [part.reshape(*before, -1, 1, cut.stride, *after) for part in parts]
    dealt: npt.NDArray[Any] = np.concatenate(turns, axis=axis + 1)
    return dealt.reshape(*before, -1, *after)


def shard_slices(
    shape: Sequence[int], state: NdSbp, mesh: Sequence[int], coords: Sequence[int]
) -> tuple[slice, ...]:
    """Return which part of the logical tensor the device at `coords` holds, one slice per dim.

    Raises:
        AutoDDLError: the state does not cut the shape evenly, or in strides.
    """
    start, dims = [0] * len(shape), list(shape)
    for axis in _cut_order(state):
        dim, size = state[axis].dim, mesh[axis]
        if dim >= len(dims) or dims[dim] % size or state[axis].stride is not None:
            raise AutoDDLError(
                f"state ({', '.join(map(str, state))}) does not cut shape {tuple(shape)} "
                f"evenly into slices on mesh {tuple(mesh)}: choose sizes that divide, or another state"
            )
        dims[dim] //= size
        start[dim] += coords[axis] * dims[dim]
    return tuple(slice(a, a + n) for a, n in zip(start, dims, strict=True))


def axis_states(ndim: int, *, partial: bool = True, own: bool = False) -> tuple[Sbp, ...]:
    """Return every plain state of a tensor along one mesh axis: B, S0 … S(ndim-1), P(sum).

    `own` adds the state of values that differ between devices (OWN).
    """
    return (B, *(S(d) for d in range(ndim)), *((P,) if partial else ()), *((OWN,) if own else ()))


def all_states(
    shape: Sequence[int], mesh: Sequence[int], *, partial: bool = True, own: bool = False
) -> Iterator[NdSbp]:
    """Yield every plain state that cuts `shape` evenly on a mesh with these axis sizes.

    Plain: the mesh's order, no strides, P(sum) only; axes of one device are B. `own` as in
    `axis_states`.
    """
    states = axis_states(len(shape), partial=partial, own=own)
    options = [states if size > 1 else (B,) for size in mesh]
    for combo in itertools.product(*options):
        if local_shape(shape, combo, mesh) is not None:
            yield NdSbp(combo)
