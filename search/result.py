"""What every solver is asked, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from autoddl.search.budget import MACHINE, Clock

Ints = npt.NDArray[np.int64]
Progress = Callable[[float, float], None]
"""Called with (seconds since start, best cost so far in seconds)."""


class Assignment(Sequence[int]):
    """One choice for every variable of a network: an array that never changes, equal by its digest."""

    def __init__(self, choices: Ints) -> None:
        self._choices = np.array(choices, dtype=np.int64)
        self._choices.setflags(write=False)

    @classmethod
    def of(cls, point: Point) -> Assignment:
        """Return the assignment that some choices are."""
        return point if isinstance(point, Assignment) else cls(np.asarray(point, dtype=np.int64))

    @cached_property
    def digest(self) -> bytes:
        """Return 16 bytes that differ for different assignments."""
        return blake2b(self._choices.tobytes(), digest_size=16).digest()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the choices, as NumPy 2 asks for them (`copy`) and as NumPy 1 does."""
        return self._choices.astype(dtype or np.int64, copy=bool(copy))

    def __len__(self) -> int:
        """Return the number of variables."""
        return len(self._choices)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        """Return a choice, or some."""
        found: int | Sequence[int] = self._choices[index].tolist()
        return found

    def __eq__(self, other: object) -> bool:
        """Tell whether another assignment has the same choices."""
        return isinstance(other, Assignment) and self.digest == other.digest

    def __hash__(self) -> int:
        """Return a number that is the same for equal assignments."""
        return hash(self.digest)

    def __repr__(self) -> str:
        """Return how many variables there are, and the digest."""
        return f"Assignment({len(self)} variables, {self.digest.hex()[:8]})"


Point: TypeAlias = Sequence[int] | Ints
"""Choices of all variables, in whatever form."""


@dataclass(frozen=True)
class SearchResult:
    """The best assignment that a solver found: one choice per node of the problem.

    `cost_s` seconds per step, `lower_bound_s` no assignment is cheaper than that, `memory_bytes` per
    device, `trace` pairs (seconds since start, best cost so far). `evaluations` counts the assignments,
    for exhaustive search the partial ones, that were priced on the way.
    """

    solver: str
    assignment: Assignment
    cost_s: float
    lower_bound_s: float
    memory_bytes: int
    trace: tuple[tuple[float, float], ...]
    evaluations: int = 0

    @property
    def gap(self) -> float:
        """Return (cost − bound) / cost; 0 is proven optimal."""
        return 1.0 - self.lower_bound_s / self.cost_s if self.cost_s > 0 else 0.0


@dataclass(frozen=True)
class SearchOptions:
    """What is asked of a solver, whichever it is: a good assignment within `budget` seconds of a `clock`.

    `memory_bytes` limits `CostNetwork.memory_bytes`; `starts` are assignments to begin with, and the
    result is not worse than any of them; `progress` is called after improvements and at the end. The
    same `seed` gives the same result unless the budget ends the search; a gap of at most `stop_gap`
    ends it, too.
    """

    budget: float = 20.0
    clock: Clock = MACHINE
    seed: int = 0
    memory_bytes: int | None = None
    stop_gap: float = 0.0
    starts: Collection[Assignment] = ()
    progress: Progress | None = None


DEFAULTS = SearchOptions()
