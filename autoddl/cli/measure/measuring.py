"""What fit-network and fit-device have in common: carry out a campaign, write and show the profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autoddl import store
from autoddl.calibrate.campaign import Campaign, OnProgress
from autoddl.cli.app import say, tell
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchError, LaunchJob
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device


def carry_out(prefix: str, campaign: Campaign[Any], job: LaunchJob) -> None:
    """Run a campaign with progress on stderr; say that the same command goes on after a failure."""
    partial = campaign.partial
    if campaign.found:
        count = f"{len(campaign.found)} of {len(campaign.parts)} parts"
        tell(prefix, f"going on with {partial}: {count} are there")
    try:
        with _progress_on_stderr(prefix) as progress:
            campaign.run(job, progress)
    except (LaunchError, OSError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):
            tell(prefix, "interrupted")
        if partial is not None and partial.exists():
            tell(prefix, f"the same command goes on: what was measured is in {partial}")
        raise


@contextmanager
def _progress_on_stderr(prefix: str) -> Iterator[OnProgress]:
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


def write_all(campaign: Campaign[Any], files: Iterable[tuple[Path | None, bytes]]) -> None:
    """Write the results of a campaign, those that have a path, and forget the partial ones.

    Raises:
        AutoDDLError: one can't be written; says that nothing is lost.
    """
    try:
        for path, data in files:
            store.write(path, data)
    except AutoDDLError as error:
        if campaign.partial is None:
            raise
        raise AutoDDLError(
            f"{error}; the same command goes on, nothing is measured twice ({campaign.partial})"
        ) from None
    campaign.forget()


def show(profile: Profile, table: Table, closing: Iterable[str], *, as_json: bool) -> None:
    """Print a profile as JSON, or a table of it, its device and closing lines."""
    if as_json:
        print(profile.encoded().decode(), end="")
        return
    Console(markup=False, emoji=False).print(table)  # brackets in names are brackets
    lines = (_device_line(kind, device) for kind, device in profile.devices.items())
    say(*lines, *closing)


def _device_line(kind: str, device: Device) -> str:
    named = f"device {kind}: " if kind else "device: "
    return (
        f"{named}{device.name}: {device.peak_flops['float32'] / 1e9:.1f} Gflop/s (float32 matmul), "
        f"{device.memory_bytes_per_s / 1e9:.1f} GB/s, {device.memory_bytes / 2**30:.1f} GiB, "
        f"{device.op_overhead_s * 1e6:.0f} µs per op"
    )


def columns(*headings: str, text: int = 1) -> Table:
    """Return a table whose columns after the first `text` ones are numbers."""
    table = Table()
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i >= text else "left")
    return table


def error_cell(mean_error: float | None) -> str:
    """Return the mean error of a fit in percent, where it is known."""
    return "" if mean_error is None else f"{100 * mean_error:.0f}"
