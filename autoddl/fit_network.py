"""Measure links and devices on real ranks and write a profile: `python -m autoddl.fit_network`."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autoddl import network_plot
from autoddl.engine.launch import LaunchError
from autoddl.engine.measure import OnProgress, run
from autoddl.engine.partial import Partial
from autoddl.engine.settings import Settings
from autoddl.errors import AutoDDLError
from autoddl.network_options import Options, parse
from autoddl.network_results import Results, profile_of, raw_table, results_of
from autoddl.perfmodel import nccl_tests
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Device, Profile

__all__ = ["main", "measure", "summary"]

_EXIT_BAD_INPUT = 2
_AGAIN = "the same command goes on from here"


def measure(
    nproc_per_node: int,
    *,
    quick: bool = False,
    mode: str = "graph",
    device: Device | None = None,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
    name: str = "measured",
) -> Profile:
    """Run `nproc_per_node` OneFlow ranks on this machine's CPU and return their profile.

    Args:
        nproc_per_node: ranks; one rank gives a profile without links.
        quick: fewer message sizes, groups and repetitions: under a minute on 4 ranks.
        mode: "graph" measures boxing inside nn.Graph, as plans use it, "eager" that of tensors.
        device: of the profile, as fit_device.measure returns it; timed roughly if not given.
        progress: is told how far it is, from another thread.
        timeout_s: seconds for everything.
        name: of the profile.

    Raises:
        LaunchError: ranks failed again and again, or the time limit was reached.
        AutoDDLError: bad arguments, no OneFlow, or too much noise to fit anything.
    """
    settings = Settings(nproc_per_node, quick=quick, mode=mode, device=device is None)
    partial = Partial(None, {}, fresh=True)
    run(settings, partial, progress=progress, timeout_s=timeout_s)
    results = results_of(list(partial.rows.values()), settings.modes)
    return profile_of(results, settings, name=name, device=device or partial.device or {})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Exit codes: 0; 2 for bad input, a full disk and the like; 124 after the time limit; 130 after
    Ctrl-C; else that of the rank that failed first (128 + signal if a signal killed it).
    """
    logging.basicConfig(format="fit_network: %(levelname)s: %(message)s", force=True)
    kept: list[Path] = []
    try:
        _main(parse(sys.argv[1:] if argv is None else argv), kept)
    except LaunchError as error:
        lines = [str(error), *error.tail, f"logs of all ranks: {error.result.log_dir}"]
        _tell("\n".join(lines + [f"{_AGAIN}: finished cases are in {path}" for path in kept]))
        return error.result.exit_code or 1
    except AutoDDLError as error:
        _tell(str(error))
        return _EXIT_BAD_INPUT
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _tell(f"{where}{error.strerror}")
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        _tell("; ".join(["interrupted", *(f"{_AGAIN}: finished cases are in {p}" for p in kept)]))
        return 130
    return 0


def _main(options: Options, kept: list[Path]) -> None:
    """Do what the options say; `kept` gets the file of partial results once there is one."""
    if options.plot_wanted:
        network_plot.check_available()
    if options.settings is None:
        _import(options)
        return
    if options.node.rank > 0:
        run(options.settings, Partial(None, {}, fresh=True), node=options.node,
            timeout_s=options.timeout_s)  # fmt: skip
        return
    device = None if options.device is None else profiles.load(options.device).device
    for path in (options.output, options.csv, options.plot):
        _check_writable(path)
    partial = _partial(options, options.settings)
    if partial.path is not None:
        kept.append(partial.path)
    with _progress() as progress:
        run(options.settings, partial, node=options.node, progress=progress,
            timeout_s=options.timeout_s)  # fmt: skip
    cases = {case: index for index, case in enumerate(options.settings.cases())}
    rows = sorted(partial.rows.values(), key=lambda row: cases[row.case])
    results = results_of(rows, options.settings.modes)
    name = options.output.stem if options.output else "measured"
    profile = profile_of(
        results, options.settings, name=name, device=device or partial.device or {}
    )
    try:
        _write_all(profile, results, options)
    except AutoDDLError as error:
        where = f"; {_AGAIN}, nothing is measured twice ({partial.path})" if partial.path else ""
        raise AutoDDLError(f"{error}{where}") from None
    partial.remove()


def _partial(options: Options, settings: Settings) -> Partial:
    """Open the file of partial results beside the output and say what it has."""
    path = options.output and options.output.with_name(options.output.name + ".partial")
    partial = Partial(path, settings.fingerprint() if path else {}, fresh=options.fresh)
    if partial.resumed:
        count = len(settings.cases())
        _tell(f"going on with {path}: {len(partial.rows)} of {count} cases are there")
    return partial


def _import(options: Options) -> None:
    """Make a profile of the output of nccl-tests."""
    name = options.output.stem if options.output else "nccl-tests"
    base = None if options.device is None else profiles.load(options.device)
    profile = nccl_tests.profile_of(options.nccl_tests, level=options.level, base=base, name=name)
    _write(options.output, (json.dumps(profile.to_json(), indent=1) + "\n").encode())
    _show(profile, options)


def _write_all(profile: Profile, results: Results, options: Options) -> None:
    """Write profile, raw table and plot, and show the profile.

    Raises:
        AutoDDLError: a file cannot be written.
    """
    _write(options.output, (json.dumps(profile.to_json(), indent=1) + "\n").encode())
    _write(options.csv, raw_table(results).encode())
    if options.plot is not None and not network_plot.available():
        _tell("no plot: matplotlib is not installed; `pip install 'autoddl[plots]'` brings it")
    elif options.plot is not None and results.rows:
        _write(options.plot, network_plot.draw(results, profile.name))
    _show(profile, options)


def _show(profile: Profile, options: Options) -> None:
    if options.json:
        print(json.dumps(profile.to_json(), indent=1))
        return
    Console().print(summary(profile))
    print(*_closing(profile, options), sep="\n")


def summary(profile: Profile) -> Table:
    """Return a table of the links: α in µs, 1/β in GB/s, mean error of the fit in percent."""
    table = Table()
    for heading in ("collective", "level"):
        table.add_column(heading)
    for heading in ("ranks", "groups", "α µs", "1/β GB/s", "error %"):
        table.add_column(heading, justify="right")
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


def _closing(profile: Profile, options: Options) -> Iterator[str]:
    device = profile.device
    yield (
        f"device: {device.name}: {device.peak_flops['float32'] / 1e9:.1f} Gflop/s (float32 matmul), "
        f"{device.memory_bytes_per_s / 1e9:.1f} GB/s, {device.memory_bytes / 2**30:.1f} GiB, "
        f"{device.op_overhead_s * 1e6:.0f} µs per op"
    )
    for level, share in profile.sharing.items():
        yield f"concurrent groups share a link of level {level} to {100 * share:.0f} %"
    yield profile.source
    if options.output is not None:
        yield f"wrote {options.output}"


def _tell(text: str) -> None:
    print(f"fit_network: {text}", file=sys.stderr, flush=True)


def _check_writable(path: Path | None) -> None:
    """Make sure, before measuring, that `path` can be written; leave no empty file behind.

    Raises:
        AutoDDLError: it can't be.
    """
    if path is None:
        return
    fresh = not path.exists()
    try:
        with path.open("a"):
            pass
        if fresh:
            path.unlink()
    except OSError as error:
        raise AutoDDLError(f"output file {path}: {error.strerror}; give another with -o") from None


def _write(path: Path | None, data: bytes) -> None:
    """Write a file whole or not at all, so that a full disk does not spoil the old one.

    Raises:
        AutoDDLError: it can't be written.
    """
    if path is None:
        return
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, _mode(path))
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise AutoDDLError(
            f"output file {path}: {error.strerror}; make room or give another with -o"
        ) from None


def _mode(path: Path) -> int:
    """Return the permissions that an ordinary write would give."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Show a bar with the remaining time on a terminal, else a line whenever the text changes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        shown: list[str] = []

        def line(text: str, done: float) -> None:
            if text not in shown[-1:]:
                shown.append(text)
                print(f"fit_network: {text} ({100 * done:.0f} %)", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting the ranks", total=1.0)
        yield lambda text, done: bar.update(task, description=text, completed=done)


if __name__ == "__main__":
    sys.exit(main())
