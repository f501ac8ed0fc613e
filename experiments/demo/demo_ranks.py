"""What both acts share: ranks that run modules, their profile, folders, and where progress is shown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import autoddl
from autoddl.api import Plan
from autoddl.perfmodel.profile import Profile
from autoddl.terminal.status_line import working
from experiments.fidelity.measure import Run

CONSOLE = Console(width=120, highlight=False)


@dataclass(frozen=True)
class DemoRanks:
    """Ranks on loopback or on a testbed, and what is known of them."""

    run: Run
    profile: Profile
    devices: Mapping[str, Any]
    """The `mesh` that was asked for, or the `cluster`, of which each plan has its best mesh."""
    out: Path
    folder: Path
    """For files that nobody needs later."""

    def plan(self, program: Any, search: str = "exact") -> Plan:
        """Plan a program for these ranks."""
        return autoddl.optimize(program, profile=self.profile, search=search, **self.devices)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Print what starts and how long it took."""
    CONSOLE.print(f"{name} …", markup=False)
    begin = time.perf_counter()
    yield
    CONSOLE.print(f"  {time.perf_counter() - begin:.1f} s", markup=False)


@contextmanager
def counted(name: str) -> Iterator[None]:
    """Do as `stage`, and count the seconds meanwhile on a terminal."""
    with stage(name), working(name):
        yield


def act(title: str) -> None:
    """Print the title of an act."""
    CONSOLE.print(f"\n[bold]{title}[/bold]")
