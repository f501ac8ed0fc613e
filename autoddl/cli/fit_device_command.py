"""`python -m autoddl fit-device`: time OneFlow's ops on this machine's ranks."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from rich.table import Table

from autoddl import store
from autoddl.calibrate.device.device_profile import device_from, profile_with
from autoddl.calibrate.device.op_timing import OpSettings, time_ops
from autoddl.cli.measuring import (
    SECONDS,
    columns,
    encoded,
    going_on,
    listed,
    progress_on_stderr,
    show,
)
from autoddl.engine import engines
from autoddl.engine.limits import ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.kernel_fits import Timed
from autoddl.perfmodel.profile import Device
from autoddl.perfmodel.roofline import names
from autoddl.sbp.rules.registry import find

_PREFIX = "autoddl fit-device"


@click.command("fit-device")
@click.option("--nproc-per-node", type=int, required=True, metavar="N", help="ranks")
@click.option("--quick", is_flag=True, help="under a minute: fewer sizes")
@click.option("--ops", metavar="A,B", help="these op types only, as matmul,relu")
@click.option("-o", "--output", type=Path, metavar="FILE", help="profile to write: device.json")
@click.option("--into", type=Path, metavar="FILE", help="profile whose device is replaced")
@click.option("--csv", type=Path, metavar="FILE", help="write every timed op, too")
@click.option("--json", "as_json", is_flag=True, help="print the profile instead of a table")
@click.option("--fresh", is_flag=True, help="forget the results of an interrupted run")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="end the ranks after this time")
def command(**values: Any) -> None:
    """Time OneFlow's ops on this machine's ranks and write the device of a profile.

    Small training steps run on all ranks at once, and what every op takes in them is noted; --into puts
    the result into a profile of fit-network. Interrupted, the same command goes on where it stopped.
    """
    options = SimpleNamespace(**values)
    settings = _settings(options)
    into = profiles.load(options.into) if options.into else None
    for path in (options.output, options.into, options.csv):
        store.check_writable(path)
    partial = Path(f"{options.output}.partial") if options.output else None
    if options.into and not options.output:
        partial = Path(f"{options.into}.device.partial")
    with going_on(_PREFIX, partial), progress_on_stderr(_PREFIX) as progress:
        ops = time_ops(
            engines.load(ONEFLOW), settings, partial=partial, fresh=options.fresh,
            progress=progress, timeout_s=options.timeout,
        )  # fmt: skip
    name = options.output.stem if options.output else "device"
    profile = profile_with(device_from(ops, settings.ranks), settings, name=name, into=into)
    for path in (options.output, options.into):
        store.write(path, encoded(profile))
    store.write(options.csv, _table_of(ops).encode())
    if partial is not None:
        partial.unlink(missing_ok=True)
    written = [f"wrote {p}" for p in (options.output, options.into, options.csv) if p]
    show(
        profile,
        as_json=options.as_json,
        table=lambda: summary(profile.device, ops),
        closing=written,
    )


def _settings(options: SimpleNamespace) -> OpSettings:
    ranks = options.nproc_per_node
    if ranks < 1:
        raise AutoDDLError(f"nproc_per_node: got {ranks}; allowed are 1 rank and more")
    ops = tuple(listed(options.ops))
    unknown = [op for op in ops if find(op) is None]
    if unknown:
        raise AutoDDLError(
            f"ops: got {', '.join(unknown)}; allowed are OneFlow's op types, as matmul, relu "
            "(docs/op_rules.md lists them)"
        )
    if options.output is None and options.into is None and not options.as_json:
        options.output = Path("device.json")
    return OpSettings(ranks, options.quick, ops)


def _table_of(ops: Sequence[Timed]) -> str:
    """Return every timed op as CSV."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(Timed.__dataclass_fields__))
    writer.writeheader()
    writer.writerows(asdict(op) for op in ops)
    return out.getvalue()


def summary(device: Device, ops: Sequence[Timed]) -> Table:
    """Return a table of the kernels of `device`, those first that took most of the timed steps."""
    total_s = sum(op.seconds for op in ops)
    taken: dict[str, float] = {}
    for op in ops:
        for name in names(op.op_type, op.family, op.variant):
            taken[name] = taken.get(name, 0.0) + op.seconds
    families = {op.family for op in ops} - {op.op_type for op in ops}

    def pooled(name: str) -> bool:
        return name.partition(":")[0] in families

    table = columns("kernel", "share %", "overhead µs", "GB/s", "Gflop/s", "error %")
    for name in sorted(device.kernels, key=lambda k: (pooled(k), -taken.get(k, 0.0))):
        kernel = device.kernels[name]
        error = kernel.mean_error
        table.add_row(
            f"family {name}" if pooled(name) else name,
            f"{100 * taken.get(name, 0.0) / total_s:.1f}",
            f"{kernel.overhead_s * 1e6:.0f}",
            f"{kernel.bytes_per_s / 1e9:.2f}",
            f"{kernel.flops_per_s['float32'] / 1e9:.2f}",
            "" if error is None else f"{100 * error:.0f}",
        )
    return table
