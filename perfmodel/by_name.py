"""Values of ops or tensors by name, held in columns: a few values, which many have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from autoddl.perfmodel.rank import NONE, Ints

Value = TypeVar("Value")


class ByName(Mapping[str, Value], Generic[Value]):
    """Values by name, as a dict has them.

    `place` numbers all names (Columns.place or Columns.number). Those with the `numbers` have a value,
    in this turn: `numbers[i]` has `distinct[which[i]]`.
    """

    def __init__(
        self, place: Mapping[str, int], numbers: Ints, which: Ints, distinct: Sequence[Value]
    ) -> None:
        self.place, self.numbers, self.which, self.distinct = place, numbers, which, distinct

    @classmethod
    def of(cls, place: Mapping[str, int], held: Mapping[str, Value]) -> ByName[Value]:
        """Return those of a mapping's values whose names have a number; what is one object, once."""
        if isinstance(held, ByName) and held.place is place:
            return held
        found = {place[name]: value for name, value in held.items() if name in place}
        one = np.fromiter(map(id, found.values()), np.int64, len(found))
        _, first, which = np.unique(one, return_index=True, return_inverse=True)
        values = list(found.values())
        distinct = [values[index] for index in first.tolist()]
        return cls(place, np.fromiter(found, np.int64, len(found)), which, distinct)

    @cached_property
    def every(self) -> Ints:
        """Return by number which value each name has, NONE for none."""
        found = np.full(len(self.place), NONE)
        found[self.numbers] = self.which
        return found

    def complete(self) -> Ints:
        """Return the same where every name has a value.

        Raises:
            KeyError: the first one that has none.
        """
        none = np.flatnonzero(self.every == NONE)
        if len(none):
            raise KeyError(list(self.place)[none[0]])
        return self.every

    @cached_property
    def _every(self) -> list[int]:
        found: list[int] = self.every.tolist()
        return found

    def __getitem__(self, name: str) -> Value:
        which = self._every[self.place[name]]
        if which == NONE:
            raise KeyError(name)
        return self.distinct[which]

    def __contains__(self, name: object) -> bool:
        number = self.place.get(name) if isinstance(name, str) else None
        return number is not None and self._every[number] != NONE

    def __iter__(self) -> Iterator[str]:
        names = list(self.place)
        return map(names.__getitem__, self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
