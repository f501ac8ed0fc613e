"""Prove the rules: `python -m experiments.check_rules [--engine] [--oracle] … [--json FILE]`.

`--engine` compares every rule with OneFlow's own lists; with `--write` it writes what OneFlow refuses
to sbp/rules/tables/oneflow.json, which the planner reads. Without a choice all proofs are run. The
exit code is 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.sbp.rules import registry

TABLE = Path(__file__).parent.parent / "sbp" / "rules" / "tables" / "oneflow.json"
PROOFS = tuple(n for n in ("oracle", "engine", "execution") if find_spec(f"experiments.proofs.{n}"))


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
    """Run the proofs that were asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in PROOFS:
        parser.add_argument(f"--{name}", action="append_const", const=name, dest="proofs")
    parser.add_argument("--only", nargs="+", metavar="TYPE", help="op types (default: all)")
    parser.add_argument(
        "--models", nargs="+", default=[], metavar="NAME",
        help="modules of experiments.models whose ops the engine is asked about, too",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the table of refused labels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was seen")
    args = parser.parse_args(argv)
    missing = [name for name in args.only or () if registry.find(name) is None]
    if missing:
        parser.error(f"no rule for {', '.join(missing)}")
    proofs = args.proofs or list(PROOFS)
    if args.write and "engine" not in proofs:
        parser.error("--write needs --engine")
    reports = {}
    try:
        for name in proofs:
            more = {"models": args.models} if name == "engine" else {}
            reports[name] = _run(name, seed=args.seed, op_types=args.only, **more)
    except AutoDDLError as error:
        print(f"check_rules: {error}", file=sys.stderr)
        return 1
    faults = [f"{name}: {fault}" for name, report in reports.items() for fault in report.faults]
    for name, report in reports.items():
        _show(name, report)
    if args.json:
        inputs = {
            "seed": args.seed,
            "only": args.only,
            "models": args.models,
            "autoddl": autoddl.__version__,
        }
        seen = {name: report.to_json() for name, report in reports.items()}
        args.json.write_text(json.dumps({**inputs, **seen}, indent=1) + "\n")
    if args.write:
        TABLE.write_text(import_module("experiments.proofs.engine").written(reports["engine"]))
        print(f"wrote {TABLE}")
        faults = [fault for fault in faults if not fault.startswith("engine: ")]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def _run(name: str, **arguments: Any) -> Report:
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
