"""The options of `python -m autoddl.fit_network`, in the manner of nccl-tests."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autoddl.engine.cases import ALL_COLLECTIVES
from autoddl.engine.launch import SHARE_CORES, SHARE_CORES_HELP, share_cores_of
from autoddl.engine.settings import (
    BUDGET_S,
    ITERATIONS,
    MODES,
    QUICK_BUDGET_S,
    QUICK_SIZES,
    SIZES,
    WARM_UP,
    Node,
    Settings,
)
from autoddl.errors import AutoDDLError

PROG = "python -m autoddl.fit_network"
_DESCRIPTION = """Measure the links and devices of a cluster on real ranks and write a profile.

On several nodes start the same command on each, with its --node-rank; node 0 writes the files.
Interrupted, the same command goes on where it stopped."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    settings: Settings | None  # None: read nccl-tests output
    node: Node
    output: Path | None
    csv: Path | None
    plot: Path | None
    plot_wanted: bool  # by --plot, rather than by default
    json: bool
    fresh: bool
    timeout_s: float | None
    device: Path | None
    nccl_tests: tuple[Path, ...]
    level: str | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AutoDDLError(f"{message}; see `{PROG} --help`")


def parse(argv: Sequence[str]) -> Options:
    """Return what a command line asks for.

    Raises:
        AutoDDLError: it is wrong.
    """
    values = _parser().parse_args([_hyphens(word) for word in argv])
    output = (
        None if values.output is None and values.json else values.output or Path("network.json")
    )
    files = tuple(values.from_nccl_tests or ())
    return Options(
        settings=None if files else _settings(values),
        node=Node(
            values.node_rank,
            values.master_addr,
            values.master_port,
            share_cores_of(values.share_cores),
        ),
        output=output,
        csv=values.csv or (output and _beside(output, ".csv")),
        plot=values.plot or (output and _beside(output, ".png")),
        plot_wanted=values.plot is not None,
        json=values.json,
        fresh=values.fresh,
        timeout_s=values.timeout,
        device=values.device,
        nccl_tests=files,
        level=values.level,
    )


def size_of(text: str) -> int:
    """Return the bytes of "8K", "4M", "1G", "512"; the letter may be followed by B or iB.

    Raises:
        AutoDDLError: it is none.
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    if match is None:
        raise AutoDDLError(f"size: got {text!r}; allowed are whole bytes such as 512, 8K, 4M, 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def sizes_of(least: int, most: int, factor: float) -> tuple[int, ...]:
    """Return least, least·factor, … up to most, whole multiples of 4 bytes.

    Raises:
        AutoDDLError: there is no such sequence.
    """
    if not 4 <= least <= most:
        raise AutoDDLError(
            f"sizes: got {least} to {most} bytes (-b, -e); allowed are 4 and more, the first not "
            "above the second"
        )
    if not factor > 1:
        raise AutoDDLError(f"sizes: got a step factor (-f) of {factor:g}; allowed are more than 1")
    sizes = []
    size = float(least)
    while size <= most * (1 + 1e-9):
        sizes.append(int(size) // 4 * 4)
        size *= factor
    if len(set(sizes)) < 2:
        raise AutoDDLError(
            f"sizes: only {least} bytes (-b, -e, -f); two sizes and more tell α from β"
        )
    return tuple(dict.fromkeys(sizes))


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.stem + suffix) if output.name else output  # a folder: refused


def _hyphens(word: str) -> str:
    """Accept --nproc_per_node as torchrun does."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _settings(values: argparse.Namespace) -> Settings:
    if values.nproc_per_node is None:
        raise AutoDDLError(
            f"the following arguments are required: --nproc-per-node; see `{PROG} --help`"
        )
    if not 0 <= values.node_rank < max(1, values.nnodes):
        raise AutoDDLError(
            f"node_rank: got {values.node_rank}; allowed with --nnodes {values.nnodes} are 0 to "
            f"{values.nnodes - 1}"
        )
    if values.nnodes > 1 and values.master_port is None:
        raise AutoDDLError(
            f"master_port: missing with --nnodes {values.nnodes}; give the same on every node, "
            "free there like those after it"
        )
    sizes = QUICK_SIZES if values.quick else SIZES
    if (values.minbytes, values.maxbytes, values.stepfactor) != (None, None, None):
        sizes = sizes_of(
            size_of(values.minbytes) if values.minbytes else sizes[0],
            size_of(values.maxbytes) if values.maxbytes else sizes[-1],
            values.stepfactor or 4.0,
        )
    collectives: tuple[str, ...] = ALL_COLLECTIVES
    if values.collectives is not None:
        collectives = tuple(name.replace("-", "_") for name in _listed(values.collectives))
    return Settings(
        nproc_per_node=values.nproc_per_node,
        nnodes=values.nnodes,
        mode=values.mode,
        sizes=sizes,
        collectives=collectives,
        group_sizes=_group_sizes(values.group_sizes),
        quick=values.quick,
        iterations=values.iters,
        warm_up=values.warmup_iters,
        budget_s=values.budget,
        device=values.device is None,
    )


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _group_sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(word) for word in _listed(text))
    except ValueError:
        raise AutoDDLError(f"group sizes: got {text!r}; allowed are numbers such as 2,4") from None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        description=_DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_measuring(parser.add_argument_group("what to measure").add_argument)
    _add_nodes(parser.add_argument_group("ranks").add_argument)
    _add_files(parser.add_argument_group("files").add_argument)
    return parser


def _add_measuring(add: Any) -> None:
    add("-b", "--minbytes", metavar="SIZE", help="smallest message, e.g. 8K (16K)")
    add("-e", "--maxbytes", metavar="SIZE", help="largest message (16M; with --quick 4M)")
    add("-f", "--stepfactor", type=float, metavar="F", help="from one size to the next (4)")
    add("-n", "--iters", type=int, default=ITERATIONS, metavar="N",
        help=f"repetitions of a case, as far as the budget allows ({ITERATIONS})")  # fmt: skip
    add("-w", "--warmup-iters", type=int, default=WARM_UP, metavar="N",
        help=f"repetitions before those ({WARM_UP})")  # fmt: skip
    add("--budget", type=float, metavar="SECONDS",
        help=f"for all cases ({BUDGET_S:.0f} for each mode; with --quick {QUICK_BUDGET_S:.0f}); "
        "a case gets a few repetitions in any event")  # fmt: skip
    add("--quick", action="store_true", help="fewer sizes and groups, under a minute on 4 ranks")
    add("--mode", choices=MODES, default="graph",
        help="boxing in nn.Graph, as plans run it, or of eager tensors (graph)")  # fmt: skip
    add("--collectives", metavar="A,B", help=f"some of {', '.join(ALL_COLLECTIVES)} (all)")
    add("--group-sizes", metavar="P,Q", help="some of the possible ones (all)")


def _add_nodes(add: Any) -> None:
    add("--nproc-per-node", type=int, metavar="N", help="ranks on each node")
    add("--nnodes", type=int, default=1, metavar="N", help="nodes (1)")
    add("--node-rank", type=int, default=0, metavar="K", help="this node, from 0")
    add("--master-addr", default="127.0.0.1", metavar="HOST", help="where others reach node 0")
    add("--master-port", type=int, metavar="PORT", help="the first of some free ports there")
    add("--timeout", type=float, metavar="SECONDS", help="end the ranks after this time")
    add("--share-cores", choices=SHARE_CORES, help=SHARE_CORES_HELP)


def _add_files(add: Any) -> None:
    add("-o", "--output", type=Path, metavar="FILE",
        help="the profile (network.json; none with --json)")  # fmt: skip
    add("--csv", type=Path, metavar="FILE", help="the raw table (the output's name with .csv)")
    add("--plot", type=Path, metavar="FILE", help="PNG of points and lines (… with .png)")
    add("--json", action="store_true", help="print the profile instead of a table")
    add("--fresh", action="store_true", help="forget the results of an interrupted run")
    add(
        "--device",
        type=Path,
        metavar="FILE",
        help="take the device of this profile, not this one",
    )
    add("--from-nccl-tests", type=Path, nargs="+", metavar="FILE",
        help="make the profile of the output of nccl-tests; nothing is measured")  # fmt: skip
    add("--level", metavar="NAME",
        help="the level those were measured in (gpu on one host, node on several)")  # fmt: skip
