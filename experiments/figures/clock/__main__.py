"""Plans on the clock (AutoDDL, figures 9, 10): `python -m experiments.figures.clock`.

On testbeds of several nodes with slow links, ours trains by turns with data parallelism, ZeRO 2,
Megatron, SUMMA, expert parallelism and OneFlow's auto-parallel. Workloads, sizes and numbers of passes
are fixed in clock_workloads.py, the rates of links by the measured device (link_rates.py); ranks that
are more than the cores have equal shares of them. Everything finished is kept in the folder, so that an
interrupted run goes on. Where a testbed can't be made (no root, no `tc`, no shares of cores) steps are
predicted only, which the table tells.
The exit code is 1 where a bar is missed.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import click
import pandas as pd

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.program import Program
from experiments.fidelity import measure
from experiments.fidelity.workload import SHARE, Bed, core_share
from experiments.figures.clock import clock_report
from experiments.figures.clock.clock_runs import ClockRuns
from experiments.figures.clock.clock_workloads import NAMES, PACE, SHAPES, WORKLOADS, ClockWorkload
from experiments.figures.clock.contestants import contestants
from experiments.figures.clock.link_rates import link_rate
from experiments.lib import cli
from experiments.lib.frames import Row
from experiments.lib.programs import captured
from experiments.testbed import network

# Of messages: those of the workloads. What short ones take is hidden by the links' token buckets.
SIZES = ("--minbytes", "4K", "--maxbytes", "4M", "--budget", "100")
BUNDLED = "cpu-loopback"  # the profile where no testbed can be made


@click.command(help=__doc__)
@cli.listed("--beds", SHAPES)
@cli.listed("--workloads", NAMES, (), help=f"of {', '.join(NAMES)}; default all, or the quick ones")
@click.option("--passes", type=click.IntRange(1), help="of each plan; default 5, with --quick 1")
@click.option("--quick", is_flag=True,
              help="links and ops calibrated quickly, fewer workloads, passes and steps")  # fmt: skip
@click.option("--predict", "only_predict", is_flag=True, help="run nothing; report what there is")
@cli.devices()
@cli.folder("out/clock")
def command(
    beds: Sequence[str], workloads: Sequence[str] | None, passes: int | None, quick: bool,
    only_predict: bool, devices: Path | None, folder: Path,
) -> int | None:  # fmt: skip
    """Plan, run what is missing, print, draw and write the tables."""
    check_folder(folder)
    wanted = [
        one
        for one in WORKLOADS
        if one.shape in beds and (one.name in workloads if workloads else one.quick or not quick)
    ]  # fmt: skip
    if not wanted:
        raise AutoDDLError(
            "--beds, --workloads: no workload has all of these; there are "
            + ", ".join(f"{one.key} ({one.figure})" for one in WORKLOADS)
        )
    passes, steps = passes or (1 if quick else 5), 8 if quick else 20
    found: list[Row] = []
    reasons: dict[str, str] = {}
    for shape in dict.fromkeys(one.shape for one in wanted):
        bed: Bed | None = None
        try:
            bed, profile = calibrated(
                shape, folder, devices or folder, quick=quick, known_only=only_predict
            )
        except AutoDDLError as error:
            reasons[shape], profile = str(error), BUNDLED
            print(f"{shape}: not measured: {error}", file=sys.stderr)
        for one in wanted:
            if one.shape == shape:
                found += rows(one, bed, profile, folder, steps, passes, run=not only_predict)
    if not found:
        return None
    return clock_report.report(pd.DataFrame(found), folder, reasons)


def check_folder(folder: Path) -> None:
    """Make sure that the folder has results of this machine and these versions only.

    Raises:
        AutoDDLError: it has others; says what to delete.
    """
    here = {
        "machine": f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores",
        "shares of cores": SHARE,
        "versions": {name: version(name) for name in ("autoddl", "oneflow", "numpy")},
        "workloads": str(WORKLOADS),
    }
    file = folder / "made_with.json"
    before = json.loads(file.read_text()) if file.exists() else here
    file.write_text(json.dumps(before, indent=1) + "\n")
    unlike = [name for name, value in here.items() if before.get(name) != value]
    if unlike:
        raise AutoDDLError(
            f"--folder {folder}: results of other {' and '.join(unlike)} than here; delete the folder, "
            "or give another"
        )


def calibrated(
    shape: str, folder: Path, devices: Path, *, quick: bool, known_only: bool
) -> tuple[Bed, str]:
    """Return a testbed and the file of its profile, measured if it is not there yet.

    `devices` is the folder of what is measured of devices.

    Raises:
        AutoDDLError: it is not there and can't be measured.
    """
    pace = next(one for one in WORKLOADS if one.shape == shape and one.name == PACE)
    count = pace.nodes * pace.ranks
    bed = Bed(shape, pace.nodes, pace.ranks, None, core_share(count))
    if not known_only:
        network.require()
    device = measure.device(bed, devices, quick=quick, known_only=known_only)
    rate = link_rate(_program(pace, folder), count, profiles.load(device).device)
    bed = replace(bed, name=f"{shape}-{rate}", rate=rate)
    file = measure.network_file(folder / bed.name, quick)
    if file.exists():
        return bed, str(file)
    if known_only:
        raise AutoDDLError(f"{file}: there is none")
    with measure.running(bed) as (_, made):
        found = measure.calibrate(bed, made, file.parent, SIZES, device, quick=quick)
        return bed, str(found)


def rows(
    one: ClockWorkload, bed: Bed | None, profile: str, folder: Path, steps: int, passes: int,
    *, run: bool,
) -> list[Row]:  # fmt: skip
    """Return a row for each plan of a workload; what is missing is `run`, if there is a testbed.

    What was planned and run for links of one rate, by one profile, is not mixed with that for others.
    """
    where = bed.name if bed else one.shape
    place, program = folder / one.key / f"{where}-{Path(profile).stem}", _program(one, folder)
    plans = contestants(one, program, profile, place)
    runs = ClockRuns(one, len(program.ops), place, steps, passes)
    if bed is not None and run and runs.missing(plans):
        runs.carry_out(plans, bed, _told)
    return clock_report.rows(one, where, plans, runs, profile)


def _program(one: ClockWorkload, folder: Path) -> Program:
    return captured(folder / one.key / "program.json", one.model, "toy", **one.sizes)


def _told(what: str) -> None:
    print(f"clock: {what}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(cli.run(command, "figures.clock"))
