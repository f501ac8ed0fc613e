"""Find by trial which one-axis signatures of an op are right: run it on every combination of states.

This knows nothing of index maps, so it finds what a rule lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.sbp.rules.registry import Array, LocalOp, OpRule, OpView, Shape
from autoddl.sbp.shards import local_shape, shard_slices
from autoddl.sbp.state import P_MAX, P_MIN, B, NdSbp, P, S, Sbp

T = TypeVar("T")

TOLERANCE = 1e-9  # relative and absolute: float64 sums in another order stay far below it

# What a reference may raise on shapes or values that make no sense together.
NONSENSE = (AutoDDLError, ValueError, LookupError, ArithmeticError)


class _Asked(Exception):
    """A reference reads an operand whose state is still open."""


class _Open(Mapping[str, T]):
    """What is known of some operands; reading another one raises `_Asked`."""

    def __init__(self, known: Mapping[str, T], names: Sequence[str]) -> None:
        """Hold what is known; `names` are all operands."""
        self._known, self._names = known, names

    def __getitem__(self, name: str) -> T:
        if name in self._known:
            return self._known[name]
        raise _Asked(name) if name in self._names else KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __or__(self, other: Mapping[str, T]) -> dict[str, T]:
        return {**self, **other}


@dataclass(frozen=True)
class Trial:
    """One op on `size` devices, with fixed inputs.

    `locals_` gives what every device holds of an input in a state; `expected` are the results on
    one device. Inputs in `shape_only` are left out of the signatures; their locals should be NaN,
    so that a reference that reads more of them gives no right result.
    """

    rule: OpRule
    view: OpView
    size: int
    locals_: Mapping[tuple[str, Sbp], Sequence[Array]]
    expected: Mapping[str, Array]
    shape_only: frozenset[str] = frozenset()

    def valid(self) -> Iterator[dict[str, Sbp]]:
        """Yield every right signature, without the inputs that the reference never reads.

        Exact, though not every combination is run: a state is chosen only when the reference reads
        the operand's values, shape or place. What comes out without that is judged for all its
        states at once, and what fails before fails for all of them.
        """
        yield from _distinct(self._search({}))

    def confirmed(self, signature: Mapping[str, Sbp]) -> Iterator[dict[str, Sbp]]:
        """Yield a signature if it is right with these inputs too; more than one where these inputs
        make the reference read an operand that was not read before."""
        outputs = self.view.outputs
        fixed = {n: B if n in outputs and not s.is_split else s for n, s in signature.items()}
        yield from _distinct(s for s in self._search(fixed) if agree(s, signature))

    def _search(self, states: Mapping[str, Sbp]) -> Iterator[dict[str, Sbp]]:
        found = self._run(states)
        if not isinstance(found, str):
            yield from found
            return
        for state in self._states(found):
            yield from self._search({**states, found: state})

    def _states(self, name: str) -> list[Sbp]:
        """Return the states to choose from; B stands for P, too, where only the shape matters yet."""
        states = even_states(self.view.shape[name], self.size)
        whole = name in self.view.outputs or name in self.shape_only
        return [s for s in states if s != P] if whole else states

    def _run(self, states: Mapping[str, Sbp]) -> str | list[dict[str, Sbp]]:
        """Return the right signatures with these states, or the operand to choose a state for."""
        fits: dict[str, list[Sbp]] = {}
        results: dict[str, list[Array]] = {}
        for rank in range(self.size):
            try:
                outcome = self.rule.reference(self._local(states, rank))
            except _Asked as asked:
                return str(asked)
            except NONSENSE:
                return []
            for name, local in outcome.items():
                if name not in states and name in self.view.inputs:
                    return name
                cuts = fits.get(name) or ([states[name]] if name in states else self._states(name))
                fits[name] = [cut for cut in cuts if self._holds(name, cut, rank, local)]
                if not fits[name]:
                    return []
                results.setdefault(name, []).append(local)
        return self._combined(states, fits, results)

    def _combined(
        self,
        states: Mapping[str, Sbp],
        fits: Mapping[str, Sequence[Sbp]],
        results: Mapping[str, Sequence[Array]],
    ) -> list[dict[str, Sbp]]:
        """Combine the states that every result may have."""
        options = {n: [state] for n, state in states.items() if n not in self.shape_only}
        for name, cuts in fits.items():
            whole = fitting(results[name], self.expected[name]) if not cuts[0].is_split else []
            right = [*whole, *(cut for cut in cuts if cut.is_split)]
            options[name] = [s for s in right if name in self.view.outputs or s == states[name]]
        return [
            dict(zip(options, combo, strict=True)) for combo in itertools.product(*options.values())
        ]

    def _local(self, states: Mapping[str, Sbp], rank: int) -> LocalOp:
        places = {name: self._place(name, state, rank) for name, state in states.items()}
        names = self.view.inputs + self.view.outputs
        arrays = {n: self.locals_[n, s][rank] for n, s in states.items() if n in self.view.inputs}
        shapes = _Open({name: place[0] for name, place in places.items()}, names)
        view = OpView(self.view.type, self.view.inputs, self.view.outputs, shapes, self.view.attr)
        starts = _Open({name: place[1] for name, place in places.items()}, names)
        return LocalOp(view, _Open(arrays, self.view.inputs), starts)

    def _holds(self, name: str, cut: Sbp, rank: int, local: Array) -> bool:
        """Tell whether a device's result has the shape, and for a split the values, of its part."""
        shape, start = self._place(name, cut, rank)
        if local.shape != shape or not cut.is_split:
            return local.shape == shape
        part = tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))
        return close(local, self.expected[name][part])

    def _place(self, name: str, state: Sbp, rank: int) -> tuple[Shape, Shape]:
        """Return the local shape of an operand and where it starts."""
        shape = self.view.shape[name]
        if not state.is_split:
            return shape, (0,) * len(shape)
        cut = shard_slices(shape, NdSbp((state,)), (self.size,), (rank,))
        return tuple(c.stop - c.start for c in cut), tuple(c.start for c in cut)


def _distinct(signatures: Iterable[dict[str, Sbp]]) -> Iterator[dict[str, Sbp]]:
    return iter({frozenset(s.items()): s for s in signatures}.values())


def agree(a: Mapping[str, Sbp], b: Mapping[str, Sbp]) -> bool:
    """Tell whether two signatures have the same state for every operand that both name."""
    return all(a[name] == state for name, state in b.items() if name in a)


def fitting(locals_: Sequence[Array], whole: Array) -> list[Sbp]:
    """Return what locals of the whole shape may be; P(max) and P(min) only where nothing else is."""
    found = [B] if all(close(local, whole) for local in locals_) else []
    if close(np.sum(locals_, axis=0), whole):
        found.append(P)
    if not found and close(np.max(locals_, axis=0), whole):
        found.append(P_MAX)
    if not found and close(np.min(locals_, axis=0), whole):
        found.append(P_MIN)
    return found


def even_states(shape: Sequence[int], size: int) -> list[Sbp]:
    """Return B, P and the splits that cut `shape` evenly over `size` devices."""
    states = (B, P, *(S(dim) for dim in range(len(shape))))
    return [s for s in states if local_shape(shape, (s,), (size,)) is not None]


def close(a: Array, b: Array) -> bool:
    """Compare arrays of one shape; NaN is close to nothing."""
    distance = np.abs(np.subtract(a, b, dtype=float))  # of truth values, too
    return bool(np.all(distance <= TOLERANCE + TOLERANCE * np.abs(b)))
