"""What every solver returns."""

from __future__ import annotations

from dataclasses import dataclass

Assignment = tuple[int, ...]


@dataclass(frozen=True)
class SearchResult:
    """The best assignment that a solver found: one choice per node of the problem.

    `cost_s` seconds per step, `lower_bound_s` no assignment is cheaper than that, `memory_bytes` per
    device, `trace` pairs (seconds since start, best cost so far).
    """

    solver: str
    assignment: Assignment
    cost_s: float
    lower_bound_s: float
    memory_bytes: int
    trace: tuple[tuple[float, float], ...]

    @property
    def gap(self) -> float:
        """Return (cost − bound) / cost; 0 is proven optimal."""
        return 1.0 - self.lower_bound_s / self.cost_s if self.cost_s > 0 else 0.0
