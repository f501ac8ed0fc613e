"""Prove the rules: `python -m experiments.check_rules [--oracle] [--engine] [--execution] [--json FILE]`.

`--oracle` runs every signature on simulated ranks and looks for missing ones; `--engine` compares every
rule with OneFlow's own lists, and with `--write` writes what OneFlow refuses to
sbp/rules/tables/oneflow.json, which the planner reads; `--execution` trains under random whole plans on
four ranks, and goes on where it was cut off. `--document` writes docs/op_rules.md from all three.
Without a choice the proofs are run that need no ranks. The exit code is 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.sbp.rules import registry
from experiments.models import ZOO

_ROOT = Path(__file__).parent.parent
TABLE = _ROOT / "sbp" / "rules" / "tables" / "oneflow.json"
DOCUMENT = _ROOT / "docs" / "op_rules.md"
# What the `run` of each proof takes beside `progress`; the modules are experiments.proofs.NAME.
ARGUMENTS = {
    "oracle": ("seed", "op_types"),
    "engine": ("seed", "op_types", "models"),
    "execution": ("seed", "models", "folder", "plans"),
}
PROOFS = tuple(ARGUMENTS)
ON_RANKS = ("execution",)


class Report(Protocol):
    """What is printed and written of a proof."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Name the columns of the table."""

    @property
    def faults(self) -> tuple[str, ...]:
        """Say, one line each, what is wrong; nothing where the proof holds."""

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return one row per op type."""

    def summary(self) -> str:
        """Sum up in one line."""

    def to_json(self) -> dict[str, Any]:
        """Return everything that was seen, as plain JSON values."""


def main(argv: list[str] | None = None) -> int:
    """Run the proofs that were asked for, print what they found, return 1 where one fails."""
    parser = _parser()
    args = parser.parse_args(argv)
    missing = [name for name in args.op_types or () if registry.find(name) is None]
    if missing:
        parser.error(f"no rule for {', '.join(missing)}")
    proofs = args.proofs or [name for name in PROOFS if name not in ON_RANKS]
    if args.write and "engine" not in proofs:
        parser.error("--write needs --engine")
    if args.document and set(proofs) != set(ARGUMENTS):
        parser.error("--document needs --oracle --engine --execution")
    reports = {}
    try:
        for name in proofs:
            reports[name] = _run(name, {a: getattr(args, a) for a in ARGUMENTS[name]})
    except AutoDDLError as error:
        print(f"check_rules: {error}", file=sys.stderr)
        return 1
    faults = [f"{name}: {fault}" for name, report in reports.items() for fault in report.faults]
    for name, report in reports.items():
        _show(name, report)
    if args.document:
        DOCUMENT.parent.mkdir(exist_ok=True)
        text = import_module("experiments.proofs.document").document(**reports)
        DOCUMENT.write_text(text)
        print(f"wrote {DOCUMENT}")
    if args.json:
        inputs = {name: getattr(args, name) for name in ("seed", "op_types", "models")}
        inputs["autoddl"] = autoddl.__version__
        seen = {name: report.to_json() for name, report in reports.items()}
        args.json.write_text(json.dumps({**inputs, **seen}, indent=1) + "\n")
    if args.write:
        TABLE.write_text(import_module("experiments.proofs.engine").written(reports["engine"]))
        print(f"wrote {TABLE}")
        faults = [fault for fault in faults if not fault.startswith("engine: ")]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in PROOFS:
        parser.add_argument(f"--{name}", action="append_const", const=name, dest="proofs")
    parser.add_argument(
        "--only", nargs="+", metavar="TYPE", dest="op_types", help="op types (default: all)"
    )
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", default=list(ZOO),
        help="models of the zoo whose ops the engine is asked about, too, or that are executed (all)",
    )  # fmt: skip
    parser.add_argument("--plans", type=int, default=15, help="to execute of every model and mesh")
    parser.add_argument(
        "--folder", type=Path, default=Path("out/proofs"), help="where executed plans are kept"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the table of refused labels")
    parser.add_argument("--document", action="store_true", help="write docs/op_rules.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was seen")
    return parser


def _run(name: str, arguments: dict[str, Any]) -> Report:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        proof = import_module(f"experiments.proofs.{name}")
        report: Report = proof.run(progress=advance, **arguments)
        return report


def _show(name: str, report: Report) -> None:
    console = Console()
    table: Any = Table(title=name)
    for column in report.columns:
        table.add_column(column, overflow="fold")
    for row in report.rows():
        table.add_row(*row)
    console.print(table, markup=False)
    console.print(report.summary(), markup=False)


if __name__ == "__main__":
    sys.exit(main())
