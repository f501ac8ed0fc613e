"""Tensor states: S(dim[, stride]), B or P(sum|max|min) for every axis of a mesh.

Where several axes cut one dim, the order in which they cut is part of the state. The default is the
mesh's: the outer axis cuts first, the inner axis cuts each piece again. A prime marks an axis that
cuts in a later turn: in (S0', S0) the second axis cuts first. Engines may execute only the
mesh's order and no strides (engine/model.py); the planner stays inside what its engine does.

S(dim, stride) deals the elements of a dim out in turns of `stride` consecutive ones (Rhino §4.1);
plain S gives every device one piece, that is the largest stride. Plain splits may be uneven: the
first devices then hold one element more, as a balanced splitter has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from autoddl.errors import AutoDDLError
from autoddl.sbp import notation
from autoddl.sbp.axis_state import OWN, P_MAX, P_MIN, B, P, S, Sbp, axis_states
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shares import Cuts, places

__all__ = [
    "OWN",
    "P_MAX",
    "P_MIN",
    "B",
    "NdSbp",
    "P",
    "S",
    "Sbp",
    "axis_states",
    "broadcast",
    "ordered",
    "orders",
]


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
        return cls(notation.read(text, mesh))

    def describe(self, mesh: Mesh) -> str:
        """Return AutoDDL's notation, "S0:(1,2), B:(2,2)": how many of each level's devices.

        Terms that stand further left take the outer axes of a level; `parse` reads it back.
        """
        return notation.counted(self, mesh)

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


def orders(mesh: Cuts) -> tuple[tuple[int, ...], ...]:
    """Return every order in which the axes of more than one device can cut, the mesh's first."""
    live = [i for i, cut in enumerate(mesh) if places(cut) > 1]
    found = [iter(order) for order in itertools.permutations(live)]
    return tuple(
        tuple(i if places(cut) == 1 else next(o) for i, cut in enumerate(mesh)) for o in found
    )


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
