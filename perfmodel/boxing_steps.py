"""The boxings that lead from one state of a tensor to another at once, whatever its shape.

One axis of the mesh, or a run of neighbouring axes in one state, turns into another entry. From (S0, B)
on 2x2 an all-gather along the first axis leads to (B, B), an all-to-all to (S1, B), and a local cut to
(S0, S0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.sbp.boxing import LOCAL, boxing, counts_result
from autoddl.sbp.shares import Cut, places, units
from autoddl.sbp.state import NdSbp, Sbp, axis_states

Ints = npt.NDArray[np.int64]
Runs = Callable[[NdSbp, NdSbp, tuple[int, ...]], bool]
"""Whether a boxing from one state to another runs on a mesh (engine.model.StreamUse.boxes)."""


class BoxingSteps(NamedTuple):
    """Boxings between states by number: from the one `before` to that `after` it.

    Those of one `look` take equally long: `looks` has primitive, axes, and the state that counts.
    """

    before: Ints
    after: Ints
    look: Ints
    looks: Sequence[tuple[str, tuple[int, ...], int]]


@lru_cache(maxsize=256)
def steps_between(
    states: tuple[NdSbp, ...], dims: int, mesh: tuple[Cut, ...], runs: Runs | None
) -> BoxingSteps:
    """Return all boxings between some states; they are the same for all shapes that these cut evenly.

    Local ones, and of others those of which `runs` says so.
    """
    index = {state: i for i, state in enumerate(states)}
    entries = [
        (
            *axis_states(dims),
            *dict.fromkeys(s for s in along if s.stride is not None and not s.turn),
        )
        for along in zip(*states, strict=True)
    ]
    looks: dict[tuple[str, tuple[int, ...], int], int] = {}
    found = []
    for src in states:
        for dst in neighbours(src, entries):
            step = _primitive(src, dst, mesh) if dst in index else None
            if step is None or not does_run(runs, src, dst, step[0], mesh):
                continue
            counted = index[dst if counts_result(step[0]) else src]
            look = looks.setdefault((*step, counted), len(looks))
            found.append((index[src], index[dst], look))
    rows = np.array(found, dtype=np.int64).reshape(-1, 3)
    rows.setflags(write=False)  # all tables share them
    before, after, look_of = rows.T
    return BoxingSteps(before, after, look_of, tuple(looks))


def does_run(
    runs: Runs | None, before: NdSbp, after: NdSbp, primitive: str, mesh: tuple[Cut, ...]
) -> bool:
    """Tell whether a boxing runs on a mesh; a local one always does."""
    if runs is None or primitive == LOCAL:
        return True
    return runs(before.executed, after.executed, tuple(map(places, mesh)))


@lru_cache(maxsize=1 << 14)
def _primitive(src: NdSbp, dst: NdSbp, mesh: tuple[Cut, ...]) -> tuple[str, tuple[int, ...]] | None:
    """Return the primitive and its axes that take a state to another of tensors that both cut evenly."""
    dims = 1 + max([sbp.dim for sbp in (*src, *dst)], default=-1)
    length = math.prod([*map(units, mesh), *[sbp.stride or 1 for sbp in (*src, *dst)]])
    step = boxing(src, dst, (length,) * dims, mesh)
    return None if step is None else (step.primitive, step.axes)


def neighbours(state: NdSbp, entries: Sequence[Collection[Sbp]]) -> Iterator[NdSbp]:
    """Yield what one axis, or a run of neighbouring axes in one state, may turn into at once.

    A new cut comes after all others of its dim; in the mesh's order where that is the same.
    """
    for first in range(len(state)):
        for last in range(first, len(state)):
            if state[last] is not state[first]:
                break
            run = range(first, last + 1)
            for entry in entries[first]:
                new = entry if entry.kind != "S" else entry.later(_last_turn(state, run, entry.dim))
                if new is not state[first] and not _mixes(state, run, new):
                    yield NdSbp(new if i in run else s for i, s in enumerate(state))


def _last_turn(state: NdSbp, run: range, dim: int) -> int:
    """Return the first turn in which a cut along `run` comes after the other cuts of `dim`."""
    others = [(s.turn, i) for i, s in enumerate(state) if s.dim == dim and i not in run]
    turn, axis = max(others, default=(0, -1))
    return turn + (axis > run[0])


def _mixes(state: NdSbp, run: range, new: Sbp) -> bool:
    """Tell whether partial values of two reductions would meet."""
    return new.kind == "P" and any(
        s.kind == "P" and s is not new for i, s in enumerate(state) if i not in run
    )
