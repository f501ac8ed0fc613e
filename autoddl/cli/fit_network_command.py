"""`python -m autoddl fit-network`: measure links and devices, in the manner of nccl-tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from rich.table import Table

from autoddl import store
from autoddl.calibrate.campaign import ClusterNode
from autoddl.calibrate.network import link_plot, link_settings
from autoddl.calibrate.network.link_cases import ALL_COLLECTIVES
from autoddl.calibrate.network.link_fits import LinkFits, fits_of, profile_of, raw_table
from autoddl.calibrate.network.link_settings import LinkSettings, sizes_of
from autoddl.calibrate.network.link_timing import FinishedLinks, time_links
from autoddl.cli.app import tell
from autoddl.cli.measuring import (
    SECONDS,
    columns,
    encoded,
    going_on,
    listed,
    progress_on_stderr,
    show,
)
from autoddl.cli.run_command import SHARE_CORES_HELP, share_cores_of
from autoddl.engine import engines
from autoddl.engine.limits import ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration import nccl_tests
from autoddl.perfmodel.profile import Profile
from autoddl.units import BINARY_BYTES, quantity

_PREFIX = "autoddl fit-network"


class _Size(click.ParamType):
    """A message size in the notation of nccl-tests: 512, 8K, 4M."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        size = quantity(value, BINARY_BYTES)
        if not size.is_integer():
            self.fail(f"got {value!r}; allowed are whole bytes such as 512, 8K, 4M, 1G", param, ctx)
        return int(size)


_SIZE = _Size()


@click.command("fit-network")
@click.option("--nproc-per-node", type=int, metavar="N", help="ranks on each node")
@click.option("--nnodes", type=int, default=1, metavar="N", help="nodes (1)")
@click.option("--node-rank", type=int, default=0, metavar="K", help="this node, from 0")
@click.option(
    "--master-addr", default="127.0.0.1", metavar="HOST", help="where others reach node 0"
)
@click.option("--master-port", type=int, metavar="PORT", help="the first of some free ports there")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="end the ranks after this time")
@click.option("--share-cores", type=click.Choice(["yes", "no"]), help=SHARE_CORES_HELP)
@click.option("-b", "--minbytes", type=_SIZE, help="smallest message, e.g. 8K (16K)")
@click.option("-e", "--maxbytes", type=_SIZE, help="largest message (16M; with --quick 4M)")
@click.option("-f", "--stepfactor", type=float, metavar="F", help="from one size to the next (4)")
@click.option(
    "-n",
    "--iters",
    type=int,
    default=link_settings.ITERATIONS,
    metavar="N",
    show_default=True,
    help="repetitions of a case, as far as the budget allows",
)
@click.option(
    "-w",
    "--warmup-iters",
    type=int,
    default=link_settings.WARM_UP,
    metavar="N",
    show_default=True,
    help="repetitions before those",
)
@click.option(
    "--budget",
    type=float,
    metavar="SECONDS",
    help=f"for all cases ({link_settings.BUDGET_S:.0f} for each mode; with --quick "
    f"{link_settings.QUICK_BUDGET_S:.0f}); a case gets a few repetitions in any event",
)
@click.option("--quick", is_flag=True, help="fewer sizes and groups, under a minute on 4 ranks")
@click.option(
    "--mode",
    type=click.Choice(link_settings.MODES),
    default="graph",
    show_default=True,
    help="boxing in nn.Graph, as plans run it, or of eager tensors",
)
@click.option("--collectives", metavar="A,B", help=f"some of {', '.join(ALL_COLLECTIVES)} (all)")
@click.option("--group-sizes", metavar="P,Q", help="some of the possible ones (all)")
@click.option(
    "-o", "--output", type=Path, metavar="FILE", help="the profile (network.json; none with --json)"
)
@click.option(
    "--csv", type=Path, metavar="FILE", help="the raw table (the output's name with .csv)"
)
@click.option("--plot", type=Path, metavar="FILE", help="PNG of points and lines (… with .png)")
@click.option("--json", "as_json", is_flag=True, help="print the profile instead of a table")
@click.option("--fresh", is_flag=True, help="forget the results of an interrupted run")
@click.option("--device", metavar="FILE", help="take the device of this profile, not this one")
@click.option(
    "--from-nccl-tests",
    type=Path,
    metavar="FILE …",
    multiple=True,
    help="make the profile of the output of nccl-tests; nothing is measured",
)
@click.option(
    "--level",
    metavar="NAME",
    help="the level those were measured in (gpu on one host, node on several)",
)
@click.argument("more", nargs=-1, type=Path, metavar="")
def command(more: tuple[Path, ...], **values: Any) -> None:  # fmt: skip
    """Measure the links and devices of a cluster on real ranks and write a profile.

    On several nodes start the same command on each, with its --node-rank; node 0 writes the files.
    Interrupted, the same command goes on where it stopped.
    """
    options = SimpleNamespace(**values)
    if more and not options.from_nccl_tests:
        raise click.UsageError(f"Got unexpected argument {str(more[0])!r}")
    options.from_nccl_tests += more
    if options.output is None and not options.as_json:
        options.output = Path("network.json")
    wanted = options.plot is not None
    if options.output is not None and options.output.name:  # no folder, which is refused later
        options.csv = options.csv or options.output.with_suffix(".csv")
        options.plot = options.plot or options.output.with_suffix(".png")
    if wanted:
        link_plot.check_available()
    if options.from_nccl_tests:
        _import(options)
    else:
        _measure(settings_of(options), options)


def settings_of(options: SimpleNamespace) -> LinkSettings:
    """Return what the options ask for.

    Raises:
        AutoDDLError, click.UsageError: that can't be.
    """
    if options.nproc_per_node is None:
        raise click.UsageError("Missing option '--nproc-per-node'.")
    if not 0 <= options.node_rank < max(1, options.nnodes):
        raise AutoDDLError(
            f"node_rank: got {options.node_rank}; allowed with --nnodes {options.nnodes} are 0 to "
            f"{options.nnodes - 1}"
        )
    if options.nnodes > 1 and options.master_port is None:
        raise AutoDDLError(
            f"master_port: missing with --nnodes {options.nnodes}; give the same on every node, free "
            "there like those after it"
        )
    sizes = link_settings.QUICK_SIZES if options.quick else link_settings.SIZES
    if (options.minbytes, options.maxbytes, options.stepfactor) != (None, None, None):
        least, most = options.minbytes or sizes[0], options.maxbytes or sizes[-1]
        sizes = sizes_of(least, most, options.stepfactor or 4.0)
    collectives = tuple(word.replace("-", "_") for word in listed(options.collectives))
    try:
        group_sizes = tuple(map(int, listed(options.group_sizes)))
    except ValueError:
        raise AutoDDLError(
            f"group sizes: got {options.group_sizes!r}; allowed are numbers such as 2,4"
        ) from None
    return LinkSettings(
        nproc_per_node=options.nproc_per_node,
        nnodes=options.nnodes,
        mode=options.mode,
        sizes=sizes,
        collectives=collectives or ALL_COLLECTIVES,
        group_sizes=group_sizes or None,
        quick=options.quick,
        iterations=options.iters,
        warm_up=options.warmup_iters,
        budget_s=options.budget,
        device=options.device is None,
    )


def _measure(settings: LinkSettings, options: SimpleNamespace) -> None:
    engine, memory_only = engines.load(ONEFLOW), FinishedLinks(None, settings)
    node = ClusterNode(
        options.node_rank, options.master_addr, options.master_port, share_cores_of(options.share_cores)
    )  # fmt: skip
    if node.rank > 0:
        time_links(engine, settings, memory_only, node=node, timeout_s=options.timeout)
        return
    device = None if options.device is None else profiles.load(options.device).device
    for path in (options.output, options.csv, options.plot):
        store.check_writable(path)
    partial = options.output and options.output.with_name(options.output.name + ".partial")
    done = FinishedLinks(partial, settings, fresh=options.fresh)
    cases = {case: index for index, case in enumerate(settings.cases())}
    if done.file.resumed:
        tell(
            _PREFIX, f"going on with {partial}: {len(done.timings)} of {len(cases)} cases are there"
        )
    with going_on(_PREFIX, partial), progress_on_stderr(_PREFIX) as progress:
        time_links(engine, settings, done, node=node, progress=progress, timeout_s=options.timeout)
    fits = fits_of(sorted(done.timings.values(), key=lambda t: cases[t.case]), settings.modes)
    name = options.output.stem if options.output else "measured"
    profile = profile_of(fits, settings, name=name, device=device or done.device or {})
    try:
        _write(profile, fits, options)
    except AutoDDLError as error:
        kept = (
            f"; the same command goes on, nothing is measured twice ({partial})" if partial else ""
        )
        raise AutoDDLError(f"{error}{kept}") from None
    done.file.remove()


def _import(options: SimpleNamespace) -> None:
    """Make a profile of the output of nccl-tests."""
    name = options.output.stem if options.output else "nccl-tests"
    base = None if options.device is None else profiles.load(options.device)
    profile = nccl_tests.profile_of(
        options.from_nccl_tests, level=options.level, base=base, name=name
    )
    store.write(options.output, encoded(profile))
    _show(profile, options)


def _write(profile: Profile, fits: LinkFits, options: SimpleNamespace) -> None:
    """Write profile, raw table and plot, and show the profile."""
    store.write(options.output, encoded(profile))
    store.write(options.csv, raw_table(fits).encode())
    if options.plot is not None and not link_plot.available():
        tell(
            _PREFIX,
            "no plot: matplotlib is not installed; `pip install 'autoddl[plots]'` brings it",
        )
    elif options.plot is not None and fits.rows:
        store.write(options.plot, link_plot.draw(fits, profile.name))
    _show(profile, options)


def _show(profile: Profile, options: SimpleNamespace) -> None:
    closing = [
        *(f"concurrent groups share a link of level {level} to {100 * share:.0f} %"
          for level, share in profile.sharing.items()),
        profile.source,
        *([] if options.output is None else [f"wrote {options.output}"]),
    ]  # fmt: skip
    show(profile, as_json=options.as_json, table=lambda: summary(profile), closing=closing)


def summary(profile: Profile) -> Table:
    """Return a table of the links: α in µs, 1/β in GB/s, mean error of the fit in percent."""
    table = columns("collective", "level", "ranks", "groups", "α µs", "1/β GB/s", "error %", text=2)
    for link in profile.links:
        beta, error = link.beta_s_per_byte, link.mean_error
        inner = f" ({link.group_size // link.inner}×{link.inner})" if link.inner > 1 else ""
        table.add_row(
            link.collective.replace("_", "-"),
            link.level,
            f"{link.group_size}{inner}",
            str(link.groups),
            f"{link.alpha_s * 1e6:.0f}",
            f"{1e-9 / beta:.2f}" if beta else "∞",
            "" if error is None else f"{100 * error:.0f}",
        )
    return table
