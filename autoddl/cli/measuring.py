"""What fit-network and fit-device have in common: progress, going on, the lines about a profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autoddl.calibrate.campaign import OnProgress
from autoddl.cli.app import tell
from autoddl.launch.job import LaunchError
from autoddl.perfmodel.profile import Device, Profile

SECONDS = click.FloatRange(0, min_open=True)


@contextmanager
def going_on(prefix: str, partial: Path | None) -> Iterator[None]:
    """Say after a failure that the same command goes on with what is in the file `partial`."""
    try:
        yield
    except (LaunchError, OSError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):
            tell(prefix, "interrupted")
        if partial is not None and partial.exists():
            tell(prefix, f"the same command goes on: what was measured is in {partial}")
        raise


@contextmanager
def progress_on_stderr(prefix: str) -> Iterator[OnProgress]:
    """Show a bar with the remaining time on a terminal, else a line whenever the text changes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        shown: list[str] = []

        def line(text: str, done: float) -> None:
            if text not in shown[-1:]:
                shown.append(text)
                tell(prefix, f"{text} ({100 * done:.0f} %)")

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting the ranks", total=1.0)
        yield lambda text, done: bar.update(task, description=text, completed=done)


def encoded(profile: Profile) -> bytes:
    """Return the file of a profile."""
    return (json.dumps(profile.to_json(), indent=1) + "\n").encode()


def show(
    profile: Profile, *, as_json: bool, table: Callable[[], Table], closing: list[str]
) -> None:
    """Print a profile as JSON, or a table of it, its device and closing lines."""
    if as_json:
        print(json.dumps(profile.to_json(), indent=1))
        return
    Console().print(table())
    print(device_line(profile.device), *closing, sep="\n")


def device_line(device: Device) -> str:
    """Return the most important numbers of a device."""
    return (
        f"device: {device.name}: {device.peak_flops['float32'] / 1e9:.1f} Gflop/s (float32 matmul), "
        f"{device.memory_bytes_per_s / 1e9:.1f} GB/s, {device.memory_bytes / 2**30:.1f} GiB, "
        f"{device.op_overhead_s * 1e6:.0f} µs per op"
    )


def listed(text: str | None) -> list[str]:
    """Return the words between commas, each once."""
    words = (word.strip() for word in (text or "").split(","))
    return list(dict.fromkeys(filter(None, words)))


def columns(*headings: str, **right: Any) -> Table:
    """Return a table whose columns after the first are numbers."""
    table = Table()
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i >= right.get("text", 1) else "left")
    return table
