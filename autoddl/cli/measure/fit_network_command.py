"""`python -m autoddl fit-network`: measure links and devices, in the manner of nccl-tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from rich.table import Table

from autoddl import store
from autoddl.calibrate.network import link_cases, link_plot
from autoddl.calibrate.network.link_campaign import LinkCampaign
from autoddl.calibrate.network.link_cases import ALL_COLLECTIVES, LinkSettings
from autoddl.calibrate.network.link_fits import LinkFits, fits_of, profile_of, raw_table
from autoddl.calibrate.network.message_sizes import sizes_of
from autoddl.calibrate.probe_launches import probe_job
from autoddl.cli.app import tell
from autoddl.cli.measure.measuring import carry_out, columns, error_cell, show, write_all
from autoddl.cli.options import (
    KIND,
    LEVEL,
    MEASURING,
    NODES,
    POSITIVE,
    RANKS,
    Listed,
    example,
    fields_of,
    flag,
    name_of,
    option,
    refuse_given,
    with_options,
)
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.errors import shown
from autoddl.launch.job import LaunchJob
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration import kinds_profile, nccl_tests
from autoddl.perfmodel.collectives import RING
from autoddl.perfmodel.profile import Profile
from autoddl.planner.memory_limits import parse_bytes
from autoddl.units import BINARY_BYTES, quantity

_PREFIX = "autoddl fit-network"
MOST_ITERATIONS = 1 << 20  # a budget ends them long before
_OF_LOGS = ("from_nccl_tests", "level", "memory_bytes")
_BESIDE_LOGS = (*_OF_LOGS, "more", "output", "as_json", "device")


def size(text: str) -> int:
    """Read a message size in the notation of nccl-tests: 512, 8K, 4M."""
    value = quantity(text, BINARY_BYTES)
    if not value.is_integer():
        raise click.BadParameter(f"got {text!r}; allowed are whole bytes such as 512, 8K, 4M, 1G")
    return int(value)


def shares(text: str) -> tuple[int, ...]:
    """Read units of the members of a group: 3/1."""
    try:
        return tuple(map(int, text.split("/")))
    except ValueError:
        raise click.BadParameter(
            f"got {shown(text, 60)}; allowed are whole numbers as 3/1"
        ) from None


_OPTIONS = with_options(
    option("--nproc-per-node", "ranks on each node", RANKS, "N"),
    NODES,
    option("--master-port", "the first of some free ports there", int, "PORT"),
    option("-b --minbytes", "smallest message, e.g. 8K (16K)", size),
    option("-e --maxbytes", "largest message (16M; with --quick 4M)", size),
    option("-f --stepfactor", "from one size to the next (4)", float, "F"),
    option("-n --iters iterations",
           f"repetitions of a case, as far as the budget allows ({link_cases.ITERATIONS})",
           click.IntRange(1, MOST_ITERATIONS), "N"),
    option("-w --warmup-iters warm_up", f"repetitions before those ({link_cases.WARM_UP})",
           click.IntRange(0, MOST_ITERATIONS), "N"),
    option("--budget budget_s", f"for all cases ({link_cases.BUDGET_S:.0f} for each mode; with --quick "
           f"{link_cases.QUICK_BUDGET_S:.0f}); a case gets a few repetitions in any event",
           POSITIVE, "SECONDS"),
    option("--mode", "boxing in nn.Graph, as plans run it, or of eager tensors (graph)",
           click.Choice(link_cases.MODES)),
    option("--collectives", f"some of {', '.join(ALL_COLLECTIVES)} (all)",
           Listed(click.Choice(ALL_COLLECTIVES)), "A,B"),
    option("--group-sizes", "some of the possible ones (all)", Listed(int), "P,Q"),
    flag("--quick", "fewer sizes and groups, one to two minutes on 4 ranks"),
    option("-o --output", "the profile (network.json; none with --json)", Path, "FILE"),
    option("--csv", "the raw table (the output's name with .csv)", Path, "FILE"),
    MEASURING,
    option("--plot", "PNG of points and lines (… with .png)", Path, "FILE"),
    option("--device", "take the device of this profile, not this one", None, "FILE"),
    option("--kinds", "what these nodes are, of unlike ones: all of one kind, or of two", Listed(KIND),
           "NAME[,NAME]"),
    option("--shares", "those of the nodes, or of the ranks of one: times padded and grouped gathers",
           shares, "A/B"),
    option("--into", "put links of those kinds into a profile", Path, "FILE"),
    option("--from-nccl-tests", "make the profile of the output of nccl-tests; nothing is measured",
           Path, "FILE …", multiple=True),
    option("--level", "the level those were measured in (gpu on one host, node on several)", LEVEL,
           "NAME"),
    option("--memory memory_bytes", "that of their GPUs, e.g. 24GiB (as the name says, …-80GB)",
           parse_bytes, "SIZE"),
)  # fmt: skip


@click.command(
    "fit-network", epilog=example("fit-network --nproc-per-node 4 --quick -o network.json")
)
@_OPTIONS
@click.argument("more", nargs=-1, type=Path, metavar="")
def command(more: tuple[Path, ...], **values: Any) -> None:
    """Measure the links and devices of a cluster on real ranks and write a profile.

    On several nodes start the same command on each, with its --node-rank; node 0 writes the files.
    Interrupted, the same command goes on where it stopped.
    """
    options = SimpleNamespace(**values)
    if more and not options.from_nccl_tests:
        raise click.UsageError(f"Got unexpected argument {str(more[0])!r}")
    options.from_nccl_tests += more
    options.kinds = tuple(sorted(options.kinds or ()))
    _check_effects(options)
    if options.output is None and not options.as_json:
        options.output = options.into or Path("network.json")
    if options.plot is not None:
        link_plot.check_available()
    if options.output is not None and options.output.name:  # no folder, which is refused later
        of = "".join(f".{kind}" for kind in options.kinds)
        options.csv = options.csv or options.output.with_suffix(f"{of}.csv")
        options.plot = options.plot or options.output.with_suffix(f"{of}.png")
    profile = (_imported if options.from_nccl_tests else _measured)(options)
    if profile is not None:
        told = [
            f"concurrent groups share a link of level {level} to {100 * share:.0f} %"
            for level, share in profile.sharing.items()
        ]
        told += [
            f"boxings over level {level} leave the device free for {100 * share:.0f} % of their time, "
            f"in which ops take {100 * profile.slowed(level):.0f} % longer"
            for level, share in profile.overlap.items()
        ]
        told += [
            f"each message over level {level} keeps the device for {1e6 * overhead_s:.0f} µs"
            for level, overhead_s in profile.overhead.items()
        ]
        wrote = [f"wrote {path}" for path in dict.fromkeys((options.output, options.into)) if path]
        closing = [*told, profile.source, *wrote]
        show(profile, summary(profile), closing, as_json=options.as_json)


def _check_effects(options: SimpleNamespace) -> None:
    """Raise click.UsageError where an option has no effect beside another, or without it."""
    if options.from_nccl_tests:
        others = {str(param.name) for param in command.params}.difference(_BESIDE_LOGS)
        refuse_given(others, "beside --from-nccl-tests, which measures nothing")
        if options.device is not None:
            refuse_given(("memory_bytes",), "beside --device, which has a memory")
    else:
        refuse_given(_OF_LOGS, "without --from-nccl-tests")
    if options.into and not options.kinds:
        raise click.UsageError("--into needs --kinds: it is for links of unlike nodes")
    if len(options.kinds) == 2:
        refuse_given(("device",), "with two --kinds, of which only links are measured")


def settings_of(options: SimpleNamespace) -> LinkSettings:
    """Return what the options ask for.

    Raises:
        AutoDDLError, click.UsageError: that can't be.
    """
    if options.nproc_per_node is None:
        raise click.UsageError("Missing option '--nproc-per-node'.")
    sizes = link_cases.QUICK_SIZES if options.quick else link_cases.SIZES
    if (options.minbytes, options.maxbytes, options.stepfactor) != (None, None, None):
        least = sizes[0] if options.minbytes is None else options.minbytes
        most = sizes[-1] if options.maxbytes is None else options.maxbytes
        factor = 4.0 if options.stepfactor is None else options.stepfactor
        sizes = sizes_of(least, most, factor)
    asked = fields_of(LinkSettings, options)
    measured = options.device is None and len(options.kinds) < 2
    mode = {"mode": "eager"} if options.shares and options.mode is None else {}
    return LinkSettings(**asked | mode | {"sizes": sizes, "device": measured})


def _measured(options: SimpleNamespace) -> Profile | None:
    """Measure and write the files; on nodes other than 0 only take part."""
    settings, engine = settings_of(options), engines.load(ONEFLOW)
    job = probe_job(engine, engine.probes.links, **fields_of(LaunchJob, options))
    if job.node_rank > 0:
        LinkCampaign(settings).run(job)
        return None
    device = None if options.device is None else profiles.load(options.device).device
    base = _base(options)
    for path in (options.output, options.into, options.csv, options.plot):
        store.check_writable(path)
    partial = options.output and options.output.with_name(options.output.name + ".partial")
    campaign = LinkCampaign(settings, partial, fresh=options.fresh)
    carry_out(_PREFIX, campaign, job)
    fits = fits_of(campaign.timings, settings.modes, campaign.overlaps)
    name = name_of(options.output, "measured")
    if base is not None and settings.between_kinds:
        device = next(iter(base.devices.values()))  # of neither: `into` takes links only
    profile = profile_of(fits, settings, name=name, device=device or campaign.device)
    if base is not None:
        profile = kinds_profile.joined(base, profile, settings.kinds)
    elif settings.kinds:
        profile = kinds_profile.of_kind(profile, settings.kinds[0])
    write_all(campaign, _files(profile, fits, options))
    return profile


def _base(options: SimpleNamespace) -> Profile | None:
    """Return the profile that links of kinds are put into; none for the first kind."""
    if options.into is not None and options.into.exists():
        base = profiles.load(options.into)
        kinds_profile.check(base, options.kinds)
        return base
    if len(options.kinds) == 2:
        raise click.UsageError(
            "Two --kinds need --into FILE, a profile that has measurements of each"
        )
    return None


def _files(
    profile: Profile, fits: LinkFits, options: SimpleNamespace
) -> Iterator[tuple[Path | None, bytes]]:
    for path in dict.fromkeys((options.output, options.into)):
        yield path, profile.encoded()
    yield options.csv, raw_table(fits)
    if options.plot is not None and not link_plot.available():
        tell(
            _PREFIX,
            "no plot: matplotlib is not installed; `pip install 'autoddl[plots]'` brings it",
        )
    elif options.plot is not None and fits.rows:
        yield options.plot, link_plot.draw(fits, profile.name)


def _imported(options: SimpleNamespace) -> Profile:
    name = name_of(options.output, "nccl-tests")
    base = None if options.device is None else profiles.load(options.device)
    profile = nccl_tests.profile_of(
        options.from_nccl_tests, level=options.level, base=base, memory_bytes=options.memory_bytes,
        name=name,
    )  # fmt: skip
    store.write(options.output, profile.encoded())
    return profile


def summary(profile: Profile) -> Table:
    """Return a table of the links: α in µs, 1/β in GB/s, mean error of the fit in percent."""
    table = columns("collective", "level", "ranks", "groups", "α µs", "1/β GB/s", "error %", text=2)
    for link in profile.links:
        alpha_us, beta = 1e6 * link.alpha_s, link.beta_s_per_byte
        how = "" if link.algorithm == RING else f" {link.algorithm}"
        inner = f" ({link.group_size // link.inner}×{link.inner})" if link.inner > 1 else ""
        table.add_row(
            link.collective.replace("_", "-") + how,
            " ".join([link.level, *link.kinds]),
            f"{link.group_size}{inner}",
            str(link.groups),
            f"{alpha_us:.0f}" if alpha_us >= 10 else f"{alpha_us:.1f}",
            f"{1e-9 / beta:.2f}" if beta else "∞",
            error_cell(link.mean_error),
        )
    return table
