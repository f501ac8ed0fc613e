"""What fit-network is to measure and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import autoddl
from autoddl.calibrate.network.link_cases import (
    ALL_COLLECTIVES,
    MOST_STEPS,
    CollectiveCase,
    RankGrid,
    schedule,
)
from autoddl.errors import AutoDDLError

MODES = ("graph", "eager", "both")
SIZES = tuple(1 << k for k in (14, 16, 18, 20, 22, 24))
QUICK_SIZES = (1 << 14, 1 << 19, 1 << 22)
BUDGET_S, QUICK_BUDGET_S = 300.0, 38.0
ITERATIONS, WARM_UP = 1000, 2
_QUICK_STEPS, _QUICK_PASSES = 4, 3


@dataclass(frozen=True)
class LinkSettings:
    """What to measure and how long."""

    nproc_per_node: int
    nnodes: int = 1
    mode: str = "graph"
    sizes: tuple[int, ...] = SIZES
    collectives: tuple[str, ...] = ALL_COLLECTIVES
    group_sizes: tuple[int, ...] | None = None
    quick: bool = False
    iterations: int = ITERATIONS
    warm_up: int = WARM_UP
    budget_s: float | None = None
    device: bool = True

    def __post_init__(self) -> None:
        for name in ("nproc_per_node", "nnodes"):
            if getattr(self, name) < 1:
                raise AutoDDLError(f"{name}: got {getattr(self, name)}; allowed are 1 and more")
        _check_choices("mode", (self.mode,), MODES)
        _check_choices("collectives", self.collectives, ALL_COLLECTIVES)
        for size in self.sizes:
            if size < 4:
                raise AutoDDLError(f"sizes: got {size} bytes; allowed are 4 bytes and more")
        if self.iterations < 1 or self.warm_up < 0:
            raise AutoDDLError(
                f"repetitions: got {self.iterations} after {self.warm_up} to warm up; allowed are "
                "1 and more after 0 and more"
            )
        if self.budget_s is not None and not self.budget_s > 0:
            raise AutoDDLError(f"budget: got {self.budget_s}; allowed are more than 0 seconds")
        if self.group_sizes is not None and self.cluster.ranks > 1:
            possible = {case.group_size for case in self._cases(None)}
            _check_choices("group sizes", self.group_sizes, tuple(sorted(possible)))

    @property
    def cluster(self) -> RankGrid:
        """Return the nodes and ranks."""
        return RankGrid(self.nnodes, self.nproc_per_node)

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the modes to measure; profiles are made of the first."""
        return ("graph", "eager") if self.mode == "both" else (self.mode,)

    def cases(self) -> list[CollectiveCase]:
        """Return all cases."""
        return self._cases(self.group_sizes)

    def _cases(self, group_sizes: tuple[int, ...] | None) -> list[CollectiveCase]:
        return schedule(
            self.cluster,
            modes=self.modes,
            sizes=self.sizes,
            collectives=self.collectives,
            group_sizes=group_sizes,
            most_steps=_QUICK_STEPS if self.quick else MOST_STEPS,
            shared_only=self.quick and self.nnodes == 1,
        )

    @property
    def seconds(self) -> float:
        """Return how long all cases may take."""
        if self.budget_s is not None:
            return self.budget_s
        return (QUICK_BUDGET_S if self.quick else BUDGET_S) * len(self.modes)

    @property
    def passes(self) -> int:
        """Return how often the ranks come back to each case.

        A host may be slow for seconds. Of a case that is measured at once, in a second of a quick run,
        all repetitions are slow then; of one that is measured in passes a third, which its estimate
        (link_cases.timing_of) nearly stands.
        """
        return _QUICK_PASSES if self.quick else 1

    def fingerprint(self) -> dict[str, Any]:
        """Return what partial results must agree in to belong together."""
        values = asdict(self)
        for key in ("iterations", "warm_up", "budget_s", "device"):
            del values[key]
        try:
            oneflow = metadata.version("oneflow")
        except metadata.PackageNotFoundError:  # `run` says so
            oneflow = "none"
        return {**values, "autoddl": autoddl.__version__, "oneflow": oneflow}


def sizes_of(least: int, most: int, factor: float) -> tuple[int, ...]:
    """Return least, least·factor, … up to most, whole multiples of 4 bytes.

    Raises:
        AutoDDLError: there is no such sequence.
    """
    if not 4 <= least <= most:
        raise AutoDDLError(
            f"sizes: got {least} to {most} bytes (-b, -e); allowed are 4 and more, the first not "
            "above the second"
        )
    if not factor > 1:
        raise AutoDDLError(f"sizes: got a step factor (-f) of {factor:g}; allowed are more than 1")
    sizes = []
    size = float(least)
    while size <= most * (1 + 1e-9):
        sizes.append(int(size) // 4 * 4)
        size *= factor
    if len(set(sizes)) < 2:
        raise AutoDDLError(
            f"sizes: only {least} bytes (-b, -e, -f); two sizes and more tell α from β"
        )
    return tuple(dict.fromkeys(sizes))


def _check_choices(what: str, got: Sequence[Any], allowed: Sequence[Any]) -> None:
    for value in got:
        if value not in allowed:
            names = ", ".join(map(str, allowed)) or "none"
            raise AutoDDLError(f"{what}: got {value!r}; allowed are {names}")
