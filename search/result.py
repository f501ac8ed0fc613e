"""What every solver returns, and how it keeps the best of what it has seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Assignment = tuple[int, ...]
Progress = Callable[[float, float], None]
"""Called with (seconds since start, best cost so far in seconds)."""

PROGRESS_EVERY_S = 0.1


@dataclass(frozen=True)
class SearchResult:
    """The best assignment that a solver found: one choice per node of the problem.

    `cost_s` seconds per step, `lower_bound_s` no assignment is cheaper than that, `memory_bytes` per
    device, `trace` pairs (seconds since start, best cost so far). `evaluations` counts the
    assignments, for exhaustive search the partial ones, that were priced on the way.
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


@dataclass
class Trace:
    """The times of improvements, for solvers that have many; `progress` is called now and then."""

    progress: Progress | None = None
    begin: float = field(default_factory=time.perf_counter)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    told: float = 0.0

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.begin

    def improved(self, cost_s: float) -> None:
        """Note a new best cost."""
        elapsed_s = self.elapsed_s()
        self.pairs.append((elapsed_s, cost_s))
        if self.progress is not None and elapsed_s >= self.told:
            self.told = elapsed_s + PROGRESS_EVERY_S
            self.progress(elapsed_s, cost_s)

    def ended(self, cost_s: float) -> tuple[tuple[float, float], ...]:
        """Return all improvements and the end."""
        self.pairs.append((self.elapsed_s(), cost_s))
        if self.progress is not None:
            self.progress(*self.pairs[-1])
        return tuple(self.pairs)
