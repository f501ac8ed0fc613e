"""How long a search may go on: in seconds, or in evaluations, which are the same on every machine.

Searches ask a clock. That of `Budget(seconds=20)` is the machine's. That of `Budget(evaluations=200_000)`
moves only by the work that is counted, so that a search ends at the same place on a slow machine as on a
fast one, whatever else runs there. Both tell seconds: an evaluation, which prices one assignment of a
network, stands for `EVALUATION_S`, and larger works for as many evaluations as they take.

    Budget(evaluations=200_000) is 20 s; a step that is simulated takes 3.5 ms of them.

An `Allowance` is a part of a budget from some moment on, and can be parted again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autoddl.compiled import clock_s
from autoddl.errors import AutoDDLError, shown

EVALUATION_S = 1e-4  # what pricing an assignment takes: 0.1 to 0.2 ms for 200 to 3,000 ops
DESCENT = 5  # so many variables that a descent looks at between two looks at the clock: 0.5 ms
SIMULATION = 35  # a step that is simulated: 1.5 to 4.5 ms
ASCENT = 8e-3  # each choice of a network in a round of dual ascent: 0.5 to 0.9 µs
BINARY = 5  # a binary of an integer program: 2,500 of them take HiGHS 1 to 4 s
MOST_S = 1 << 60  # sums of seconds stay exact


class Clock:
    """The clock of the machine; it stands still while inner loops are compiled or loaded."""

    counted = False

    def now_s(self) -> float:
        """Return the seconds since some moment."""
        return clock_s()

    def count(self, evaluations: float) -> None:
        """Take note of work that was done."""


class Counter(Clock):
    """A clock that is moved by work alone."""

    counted = True

    def __init__(self) -> None:
        self.evaluations = 0.0

    def now_s(self) -> float:
        """Return the seconds that what was counted stands for."""
        return self.evaluations * EVALUATION_S

    def count(self, evaluations: float) -> None:
        """Move on by some work."""
        self.evaluations += evaluations


MACHINE = Clock()


@dataclass(frozen=True)
class Budget:
    """What a search may take: `seconds`, or `evaluations`; give one of them.

    Raises:
        AutoDDLError: none or both are given, or one that is no number above 0.
    """

    seconds: float | None = None
    evaluations: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            raise AutoDDLError(
                f"budget: got {len(given)} of seconds and evaluations; give one of them, "
                "Budget(seconds=20) or Budget(evaluations=200_000)"
            )
        for name, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and (0 < value <= MOST_S or value == math.inf)):
                raise AutoDDLError(f"budget: got {shown(value, 150)}; allowed are {name} > 0")

    @classmethod
    def of(cls, given: Any) -> Budget:
        """Return a budget, which a number gives in seconds."""
        return given if isinstance(given, Budget) else cls(seconds=given)

    def begin(self) -> Allowance:
        """Return all of it, from now on, with a clock of its own."""
        if self.evaluations is None:
            return Allowance.of(MACHINE, self.seconds or 0.0)
        return Allowance.of(Counter(), self.evaluations * EVALUATION_S)


@dataclass(frozen=True)
class Allowance:
    """So many `seconds` of a clock, from `begin_s` on."""

    clock: Clock
    seconds: float
    begin_s: float

    @classmethod
    def of(cls, clock: Clock, seconds: float) -> Allowance:
        """Return so many seconds from now on."""
        return cls(clock, seconds, clock.now_s())

    def spent_s(self) -> float:
        """Return the seconds since the begin."""
        return self.clock.now_s() - self.begin_s

    def left_s(self) -> float:
        """Return the seconds until the end, from 0 on."""
        return max(0.0, self.seconds - self.spent_s())

    def over(self) -> bool:
        """Tell whether the end has come."""
        return self.spent_s() >= self.seconds

    def next(self, seconds: float) -> Allowance:
        """Return so many seconds from now on, which may go on behind the end."""
        return Allowance.of(self.clock, seconds)


TWENTY_SECONDS = Budget(seconds=20.0)  # what planning gets if nothing is said
