"""Measure links and devices on real ranks and write a profile: `python -m autoddl.fit_network`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autoddl.engine.launch import LaunchError
from autoddl.engine.measure import MODES, OnProgress, measure
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile

__all__ = ["main", "measure", "summary"]

_PROG = "python -m autoddl.fit_network"
_EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Exit codes: 0; 2 for bad input; 124 after the time limit; 130 after Ctrl-C; else that of the
    rank that failed first (128 + signal if a signal killed it).
    """
    logging.basicConfig(format="fit_network: %(levelname)s: %(message)s", force=True)
    try:
        options = _parse(sys.argv[1:] if argv is None else argv)
        output = _output_path(options)
        with _writable(output), _progress() as progress:
            profile = measure(
                options.nproc_per_node,
                quick=options.quick,
                mode=options.mode,
                progress=progress,
                timeout_s=options.timeout,
                name=output.stem if output else "measured",
            )
    except LaunchError as error:
        lines = [str(error), *error.tail, f"logs of all ranks: {error.result.log_dir}"]
        print("fit_network: " + "\n".join(lines), file=sys.stderr)
        return error.result.exit_code or 1
    except AutoDDLError as error:
        print(f"fit_network: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("fit_network: interrupted, nothing written", file=sys.stderr)
        return 130
    if output is not None:
        profile.save(output)
    if options.json:
        print(json.dumps(profile.to_json(), indent=1))
    else:
        Console().print(summary(profile))
        print(*_closing(profile, output), sep="\n")
    return 0


def summary(profile: Profile) -> Table:
    """Return a table of the links: α in µs, 1/β in GB/s, mean error of the fit in percent."""
    table = Table()
    table.add_column("collective")
    for heading in ("ranks", "α µs", "1/β GB/s", "error %"):
        table.add_column(heading, justify="right")
    for link in profile.links:
        beta, error = link.beta_s_per_byte, link.mean_error
        table.add_row(
            link.collective.replace("_", "-"),
            str(link.group_size),
            f"{link.alpha_s * 1e6:.0f}",
            f"{1e-9 / beta:.2f}" if beta else "∞",
            "" if error is None else f"{100 * error:.0f}",
        )
    return table


def _closing(profile: Profile, output: Path | None) -> Iterator[str]:
    device = profile.device
    yield (
        f"device: {device.name}: {device.peak_flops['float32'] / 1e9:.1f} Gflop/s (float32 matmul), "
        f"{device.memory_bytes_per_s / 1e9:.1f} GB/s, {device.memory_bytes / 2**30:.1f} GiB, "
        f"{device.op_overhead_s * 1e6:.0f} µs per op"
    )
    yield profile.source
    if output is not None:
        yield f"wrote {output}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AutoDDLError(f"{message}; see `{_PROG} --help`")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog=_PROG, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--nproc-per-node", "--nproc_per_node", type=int, required=True, metavar="N", help="ranks")
    add("--quick", action="store_true", help="half a minute instead of several")
    add("-o", "--output", type=Path, metavar="FILE", help="default: network.json; none with --json")
    add("--json", action="store_true", help="print the profile instead of a table")
    add("--mode", choices=MODES, help="boxing of eager tensors (--quick) or in nn.Graph (else)")
    add("--timeout", type=float, metavar="SECONDS", help="end the ranks after this time")
    return parser.parse_args(argv)


def _output_path(options: argparse.Namespace) -> Path | None:
    if options.output is None and options.json:
        return None
    return options.output or Path("network.json")


@contextmanager
def _writable(output: Path | None) -> Iterator[None]:
    """Make sure, before measuring, that `output` can be written; leave no empty file behind."""
    if output is None:
        yield
        return
    fresh = not output.exists()
    try:
        with output.open("a"):
            pass
    except OSError as error:
        raise AutoDDLError(
            f"output file {output}: {error.strerror}; give another with -o"
        ) from None
    try:
        yield
    except BaseException:
        if fresh:
            output.unlink(missing_ok=True)
        raise


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
