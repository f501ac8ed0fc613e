"""What autoddl.fit_network is to measure and how long, and how its nodes find each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import autoddl
from autoddl.engine.cases import ALL_COLLECTIVES, MOST_STEPS, Case, Cluster, schedule
from autoddl.errors import AutoDDLError

MODES = ("graph", "eager", "both")
SIZES = tuple(1 << k for k in (14, 16, 18, 20, 22, 24))
QUICK_SIZES = (1 << 14, 1 << 19, 1 << 22)
BUDGET_S, QUICK_BUDGET_S = 300.0, 38.0
ITERATIONS, WARM_UP = 1000, 2
_QUICK_STEPS, _QUICK_PASSES = 4, 3


@dataclass(frozen=True)
class Settings:
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
    def cluster(self) -> Cluster:
        """Return the nodes and ranks."""
        return Cluster(self.nnodes, self.nproc_per_node)

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the modes to measure; profiles are made of the first."""
        return ("graph", "eager") if self.mode == "both" else (self.mode,)

    def cases(self) -> list[Case]:
        """Return all cases."""
        return self._cases(self.group_sizes)

    def _cases(self, group_sizes: tuple[int, ...] | None) -> list[Case]:
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
        (cases.row_of) nearly stands.
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


def _check_choices(what: str, got: Sequence[Any], allowed: Sequence[Any]) -> None:
    for value in got:
        if value not in allowed:
            names = ", ".join(map(str, allowed)) or "none"
            raise AutoDDLError(f"{what}: got {value!r}; allowed are {names}")


@dataclass(frozen=True)
class Node:
    """Which node this is, how the nodes find each other, and how its ranks wait (see launch)."""

    rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    share_cores: bool | None = None
