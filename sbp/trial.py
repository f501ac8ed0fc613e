"""Find by trial which one-axis signatures of an op are right: run it on every combination of states.

This knows nothing of index maps, so it finds what a rule lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.sbp.rules.registry import Array, LocalOp, OpRule, OpView
from autoddl.sbp.state import P_MAX, P_MIN, B, P, S, Sbp, local_shape, shard_slices

TOLERANCE = 1e-9  # relative and absolute: float64 sums in another order stay far below it

# What a reference may raise on shapes or values that make no sense together.
NONSENSE = (AutoDDLError, ValueError, LookupError, ArithmeticError)


@dataclass(frozen=True)
class Trial:
    """One op on `size` devices, with fixed inputs.

    `locals_` gives what every device holds of an input in a state; `expected` are the results on
    one device. Inputs in `unread` (only their shape is read) stay B and are filled with NaN, so a
    reference that does read them gives no right result; they are left out of the signatures.
    """

    rule: OpRule
    view: OpView
    size: int
    locals_: Mapping[tuple[str, Sbp], Sequence[Array]]
    expected: Mapping[str, Array]
    unread: frozenset[str] = frozenset()

    def valid(self) -> Iterator[dict[str, Sbp]]:
        """Yield every right signature.

        States of an output that keep it whole are told apart by one and the same result.
        """
        read = [name for name in self.view.inputs if name not in self.unread]
        cuts = [self._cuts(name) for name in self.view.outputs]
        for states in itertools.product(*(even_states(self._shape(n), self.size) for n in read)):
            given = dict(zip(read, states, strict=True))
            for cut in itertools.product(*cuts):
                yield from self._right({**given, **dict(zip(self.view.outputs, cut, strict=True))})

    def is_right(self, signature: Mapping[str, Sbp]) -> bool:
        """Tell whether a signature that `valid` may have found is right with these inputs too."""
        outputs = self.view.outputs
        run = {n: B if n in outputs and not s.is_split else s for n, s in signature.items()}
        return signature in self._right(run)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.view.shape[name]

    def _cuts(self, name: str) -> list[Sbp]:
        return [s for s in even_states(self._shape(name), self.size) if s != P]

    def _right(self, states: Mapping[str, Sbp]) -> list[dict[str, Sbp]]:
        """Return the right signatures with these inputs and cuts; B stands for whole outputs."""
        results = self._run(states)
        if results is None:
            return []
        options = []
        for name, locals_ in results.items():
            fits = fitting(locals_, states[name], self.expected[name])
            options.append([s for s in fits if name in self.view.outputs or s == states[name]])
        return [
            {**states, **dict(zip(results, combo, strict=True))}
            for combo in itertools.product(*options)
        ]

    def _run(self, states: Mapping[str, Sbp]) -> dict[str, list[Array]] | None:
        """Run every device; None as soon as one fails or holds other than its part of a cut."""
        results: dict[str, list[Array]] = {}
        whole = {name: (self._shape(name), (0,) * len(self._shape(name))) for name in self.unread}
        for rank in range(self.size):
            places = whole | {n: self._place(n, state, rank) for n, state in states.items()}
            op = LocalOp(
                OpView(
                    self.view.type,
                    self.view.inputs,
                    self.view.outputs,
                    {name: shape for name, (shape, _) in places.items()},
                    self.view.attr,
                ),
                {n: self.locals_[n, states.get(n, B)][rank] for n in self.view.inputs},
                {name: start for name, (_, start) in places.items()},
            )
            try:
                outcome = self.rule.reference(op)
            except NONSENSE:
                return None
            for name, local in outcome.items():
                shape, start = places[name]
                if local.shape != shape:
                    return None
                if states[name].is_split:
                    part = tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))
                    if not close(local, self.expected[name][part]):
                        return None
                results.setdefault(name, []).append(local)
        return results

    def _place(self, name: str, state: Sbp, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the local shape of an operand and where it starts."""
        shape = self._shape(name)
        if not state.is_split:
            return shape, (0,) * len(shape)
        cut = shard_slices(shape, (state,), (self.size,), (rank,))
        return tuple(c.stop - c.start for c in cut), tuple(c.start for c in cut)


def fitting(locals_: Sequence[Array], cut: Sbp, whole: Array) -> list[Sbp]:
    """Return the states that whole locals may have; P(max) and P(min) only where no other is right.

    Locals of a split, known to be right, have that state only.
    """
    if cut.is_split:
        return [cut]
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
