"""`python -m autoddl profiles`: the bundled profiles, or what one of them says."""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.console import Console
from rich.table import Table

from autoddl.cli.app import say
from autoddl.cli.measure.fit_network_command import summary
from autoddl.cli.measure.measuring import columns
from autoddl.cli.options import example
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.report.plan_text import WIDTH
from autoddl.units import bytes_text


@click.command("profiles", epilog=example("profiles h100"))
@click.argument("name", metavar="[NAME]", required=False)
def command(name: str | None) -> None:
    """List the bundled profiles, or show the links and devices of NAME, a bundled one or a file.

    These are the names that `--profile` and `autoddl.optimize(profile=…)` take.
    """
    console = Console(width=WIDTH, markup=False, emoji=False)  # brackets in names are brackets
    if name is None:
        console.print(listing({each: profiles.load(each) for each in profiles.bundled()}))
        return
    profile = profiles.load(name)
    say(
        f"profile {profile.name}, {profile.kind}, of {profile.device_type} devices",
        f"made from: {profile.source}",
        f"levels: {', '.join(profile.levels)}; kinds of devices: {_kinds(profile)}",
    )
    console.print(devices(profile))
    console.print(summary(profile))


def listing(found: Mapping[str, Profile]) -> Table:
    """Return a row for each profile: what it is of, and what it was made from."""
    table = Table(show_lines=True)
    for heading, width in (("name", None), ("device", 22), ("levels", None), ("made from", None)):
        table.add_column(
            heading, overflow="fold", no_wrap=heading in ("name", "levels"), max_width=width
        )
    for name, profile in found.items():
        of = ", ".join(device.name for device in profile.devices.values())
        levels = ", ".join(profile.levels)
        table.add_row(name, f"{of} ({profile.device_type})", levels, profile.source)
    return table


def devices(profile: Profile) -> Table:
    """Return a row for each kind of device: memory, rates, what ops without a kernel cost to launch."""
    table = columns(
        "device", "kind", "peak Tflop/s", "memory", "GB/s", "µs per op", "kernels", text=3
    )
    for kind, device in profile.devices.items():
        peaks = (f"{dtype} {rate / 1e12:.3g}" for dtype, rate in device.peak_flops.items())
        table.add_row(
            device.name,
            kind or "-",
            ", ".join(peaks),
            bytes_text(device.memory_bytes),
            f"{device.memory_bytes_per_s / 1e9:.1f}",
            f"{device.op_overhead_s * 1e6:.3g}",
            str(len(device.kernels)),
        )
    return table


def _kinds(profile: Profile) -> str:
    return ", ".join(profile.kinds) or "one, all are alike"
