"""`python -m autoddl fit-device`: time OneFlow's ops on this machine's ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from autoddl import store
from autoddl.calibrate.device.op_timing import OpCampaign, OpSettings, job_for, profile_with
from autoddl.cli.measure.measuring import carry_out, columns, error_cell, show, write_all
from autoddl.cli.options import (
    KIND,
    MEASURING,
    RANKS,
    Listed,
    example,
    flag,
    name_of,
    option,
    with_options,
)
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.errors import AutoDDLError, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.kernel_fits import Timed
from autoddl.perfmodel.profile import ALIKE
from autoddl.perfmodel.profile_entries import Device
from autoddl.perfmodel.roofline import names
from autoddl.sbp.rules.registry import find


def _op_type(name: str) -> str:
    if find(name) is None:
        raise AutoDDLError(
            f"ops: got {shown(name, 60)}; allowed are OneFlow's op types, as matmul, relu "
            "(docs/op_rules.md lists them)"
        )
    return name


_OPTIONS = with_options(
    option("--nproc-per-node", "ranks", RANKS, "N", required=True),
    option("--ops", "these op types only, as matmul,relu", Listed(_op_type), "A,B"),
    option("--into", "profile whose device is replaced", Path, "FILE"),
    option("--kind", "what kind this node is, of unlike ones", KIND, "NAME"),
    flag("--quick", "under a minute: fewer sizes"),
    option("-o --output", "profile to write: device.json", Path, "FILE"),
    option("--csv", "write every timed op, too", Path, "FILE"),
    MEASURING,
)


@click.command(
    "fit-device", epilog=example("fit-device --nproc-per-node 4 --quick --into network.json")
)
@_OPTIONS
def command(
    nproc_per_node: int, ops: tuple[str, ...] | None, into: Path | None, kind: str | None, quick: bool,
    output: Path | None, csv: Path | None, as_json: bool, fresh: bool, timeout_s: float | None,
) -> None:  # fmt: skip
    """Time OneFlow's ops on this machine's ranks and write the device of a profile.

    Small training steps run on all ranks at once, and what every op takes in them is noted; --into puts
    the result into a profile of fit-network. Interrupted, the same command goes on where it stopped.
    """
    if output is None and into is None and not as_json:
        output = Path("device.json")
    base = profiles.load(into) if into else None
    if base is not None and base.kinds and not kind:
        raise AutoDDLError(
            f"--into {into}: a profile of kinds {', '.join(base.kinds)}; say with --kind which this "
            "node is"
        )
    for path in (output, into, csv):
        store.check_writable(path)
    partial = Path(f"{output}.partial") if output else into and Path(f"{into}.device.partial")
    settings = OpSettings(nproc_per_node, quick, ops or (), kind or ALIKE)
    job = job_for(engines.load(ONEFLOW), settings, timeout_s)
    campaign = OpCampaign(settings, partial, fresh=fresh)
    carry_out("autoddl fit-device", campaign, job)
    timed = campaign.ops
    profile = profile_with(campaign.device, settings, name=name_of(output, "device"), into=base)
    table = store.csv_bytes(list(Timed.__dataclass_fields__), map(asdict, timed))
    write_all(campaign, [(output, profile.encoded()), (into, profile.encoded()), (csv, table)])
    wrote = [f"wrote {path}" for path in (output, into, csv) if path]
    show(profile, summary(profile.devices[settings.kind], timed), wrote, as_json=as_json)


def summary(device: Device, ops: Sequence[Timed]) -> Table:
    """Return a table of the kernels of `device`, those first that took most of the timed steps."""
    total_s = sum(op.seconds for op in ops)
    taken: dict[str, float] = defaultdict(float)
    for op in ops:
        for name in set(names(op.op_type, op.family, op.variant)):  # of matmul both are the same
            taken[name] += op.seconds
    families = {op.family for op in ops} - {op.op_type for op in ops}

    def pooled(name: str) -> bool:
        return name.partition(":")[0] in families

    table = columns("kernel", "share %", "overhead µs", "GB/s", "Gflop/s", "error %")
    for name in sorted(device.kernels, key=lambda k: (pooled(k), -taken[k])):
        kernel = device.kernels[name]
        table.add_row(
            f"family {name}" if pooled(name) else name,
            f"{100 * taken[name] / total_s:.1f}",
            f"{kernel.overhead_s * 1e6:.0f}",
            f"{kernel.bytes_per_s / 1e9:.2f}",
            f"{kernel.flops_per_s['float32'] / 1e9:.2f}",
            error_cell(kernel.mean_error),
        )
    return table
