"""Time OneFlow's ops on this machine's ranks and write the device of a profile.

`python -m autoddl.fit_device --nproc-per-node 4 -o device.json` runs small training steps on all ranks
at once and notes what every op takes in them; `--into network.json` puts the result into a profile
that `python -m autoddl.fit_network` has written.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autoddl.engine.launch import LaunchError
from autoddl.engine.measure_device import OnProgress, Setting, measure_ops
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.compute import names
from autoddl.perfmodel.kernels import Timed, device_of
from autoddl.perfmodel.profile import Device, Profile
from autoddl.sbp.rules.registry import find

__all__ = ["main", "measure", "summary"]

_PROG = "python -m autoddl.fit_device"
_EXIT_BAD_INPUT = 2
_LEVEL = "gpu"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Exit codes: 0; 2 for bad input; 124 after the time limit; 130 after Ctrl-C; else that of the
    rank that failed first (128 + signal if a signal killed it).
    """
    logging.basicConfig(format="fit_device: %(levelname)s: %(message)s", force=True)
    kept: Path | None = None
    try:
        options = _parse(sys.argv[1:] if argv is None else argv)
        into = profiles.load(options.into) if options.into else None
        kept = _partial(options)
        for path in (options.output, options.into, options.csv):
            _check_writable(path)
        setting = Setting(options.nproc_per_node, options.quick, options.ops)
        with _progress() as progress:
            ops = measure_ops(setting, partial=kept, progress=progress, timeout_s=options.timeout)
        profile = _profile(_device(ops, options.nproc_per_node), options, into)
        _write_all(profile, ops, options)
        if kept is not None:
            kept.unlink(missing_ok=True)
    except LaunchError as error:
        lines = [str(error), *error.tail, f"logs of all ranks: {error.result.log_dir}"]
        print("fit_device: " + "\n".join(lines) + _resume(kept), file=sys.stderr)
        return error.result.exit_code or 1
    except AutoDDLError as error:
        print(f"fit_device: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except OSError as error:
        where = error.filename or "a file"
        print(f"fit_device: {where}: {error.strerror}{_resume(kept)}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"fit_device: interrupted{_resume(kept)}", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(profile.to_json(), indent=1))
    else:
        Console().print(summary(profile.device, ops))
        print(*_closing(profile, options), sep="\n")
    return 0


def measure(
    nproc_per_node: int,
    *,
    quick: bool = False,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
) -> Device:
    """Time OneFlow's ops on `nproc_per_node` CPU ranks of this machine at once; return the device.

    Args:
        nproc_per_node: ranks.
        quick: fewer sizes: under a minute.
        progress: is told how far it is, from another thread.
        timeout_s: seconds for everything.

    Raises:
        LaunchError: a rank failed, or the time limit was reached.
        AutoDDLError: bad arguments or no OneFlow.
    """
    setting = Setting(nproc_per_node, quick, ())
    return _device(
        measure_ops(setting, partial=None, progress=progress, timeout_s=timeout_s), nproc_per_node
    )


def summary(device: Device, ops: Sequence[Timed]) -> Table:
    """Return a table of the kernels of `device`, those first that took most of the timed steps."""
    total_s = sum(op.seconds for op in ops)
    taken: dict[str, float] = {}
    for op in ops:
        for name in names(op.op_type, op.family, op.variant):
            taken[name] = taken.get(name, 0.0) + op.seconds
    families = {op.family for op in ops} - {op.op_type for op in ops}
    table = Table()
    table.add_column("kernel")
    for heading in ("share %", "overhead µs", "GB/s", "Gflop/s", "error %"):
        table.add_column(heading, justify="right")

    def pooled(name: str) -> bool:
        return name.partition(":")[0] in families

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


def _closing(profile: Profile, options: argparse.Namespace) -> Iterator[str]:
    device = profile.device
    yield (
        f"device: {device.name}: {device.peak_flops['float32'] / 1e9:.1f} Gflop/s (float32), "
        f"{device.memory_bytes_per_s / 1e9:.1f} GB/s, {device.memory_bytes / 2**30:.1f} GiB, "
        f"{device.op_overhead_s * 1e6:.0f} µs per op"
    )
    yield from (f"wrote {p}" for p in (options.output, options.into, options.csv) if p)


def _device(ops: Sequence[Timed], ranks: int) -> Device:
    cores = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return device_of(
        ops,
        name=f"{_cpu_name()}, one of {ranks} ranks on {cores} cores",
        memory_bytes=memory_bytes // ranks,
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def _profile(device: Device, options: argparse.Namespace, into: Profile | None) -> Profile:
    command = f"{_PROG} --nproc-per-node {options.nproc_per_node}" + " --quick" * options.quick
    if into is not None:
        return replace(into, device=device, source=f"{into.source}; device: {command}")
    return Profile(
        name=options.output.stem if options.output else "device",
        source=f"measured with {command}",
        kind="measured",
        device_type="cpu",
        levels=(_LEVEL,),
        links=(),
        device=device,
    )


def _write_all(profile: Profile, ops: Sequence[Timed], options: argparse.Namespace) -> None:
    for path in (options.output, options.into):
        if path is not None:
            with _replacing(path) as fresh:
                profile.save(fresh)
    if options.csv is not None:
        with _replacing(options.csv) as fresh, fresh.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(Timed.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(asdict(op) for op in ops)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a file to write that takes the place of `path` when it is complete, and only then."""
    fresh = Path(f"{path}.new")
    try:
        yield fresh
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AutoDDLError(f"{message}; see `{_PROG} --help`")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog=_PROG, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--nproc-per-node", "--nproc_per_node", type=int, required=True, metavar="N", help="ranks")
    add("--quick", action="store_true", help="under a minute: fewer sizes")
    add("--ops", metavar="A,B", default="", help="these op types only, as matmul,relu")
    add("-o", "--output", type=Path, metavar="FILE", help="profile to write: device.json")
    add("--into", type=Path, metavar="FILE", help="profile whose device is replaced")
    add("--csv", type=Path, metavar="FILE", help="write every timed op, too")
    add("--json", action="store_true", help="print the profile instead of a table")
    add("--timeout", type=float, metavar="SECONDS", help="end the ranks after this time")
    options = parser.parse_args(argv)
    if options.nproc_per_node < 1:
        raise AutoDDLError(
            f"nproc_per_node: got {options.nproc_per_node}; allowed are 1 rank and more"
        )
    if options.timeout is not None and not options.timeout > 0:
        raise AutoDDLError(f"timeout: got {options.timeout}; allowed are more than 0 seconds")
    options.ops = tuple(dict.fromkeys(filter(None, map(str.strip, options.ops.split(",")))))
    unknown = [op for op in options.ops if find(op) is None]
    if unknown:
        raise AutoDDLError(
            f"ops: got {', '.join(unknown)}; allowed are OneFlow's op types, as matmul, relu "
            "(docs/op_rules.md lists them)"
        )
    if options.output is None and options.into is None and not options.json:
        options.output = Path("device.json")
    return options


def _partial(options: argparse.Namespace) -> Path | None:
    """Return where finished sources are kept: beside what is written in the end."""
    if options.output is not None:
        return Path(f"{options.output}.partial")
    return None if options.into is None else Path(f"{options.into}.device.partial")


def _resume(kept: Path | None) -> str:
    if kept is None or not kept.exists():
        return ""
    return f"\nfit_device: what was timed is in {kept}; the same command goes on from there"


def _check_writable(path: Path | None) -> None:
    """Make sure, before measuring, that a file can be written; leave no empty one behind."""
    if path is None:
        return
    fresh = not path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise AutoDDLError(f"output file {path}: {error.strerror}; give another") from None
    if fresh:
        path.unlink()


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Show a bar with the remaining time on a terminal, else a line whenever the text changes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        shown: list[str] = []

        def line(text: str, done: float) -> None:
            if text not in shown[-1:]:
                shown.append(text)
                print(f"fit_device: {text} ({100 * done:.0f} %)", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting the ranks", total=1.0)
        yield lambda text, done: bar.update(task, description=text, completed=done)


if __name__ == "__main__":
    sys.exit(main())
