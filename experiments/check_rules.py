"""Prove rules, boxings and lowered steps: `python -m experiments.check_rules [--oracle] [--json FILE]`.

`--oracle` runs every signature on simulated ranks and looks for missing ones; `--boxings` runs all
boxings over shares there, and the paths between all states; `--lowered-steps` runs training steps
of `--models` there, in random layouts over shares, as what every rank does. `--engine` compares rules
with OneFlow's own lists, and with `--write` writes what OneFlow refuses to
autoddl/engine/oneflow/model/refused.json, which the planner reads; `--execution` trains under random
whole plans on four ranks, and goes on where it was cut off. `--document` writes docs/op_rules.md from
the oracle, the engine and the execution. Without a choice the proofs are run that need no ranks. The
exit code is 1 where one fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import click
import pandas as pd
from rich.console import Console
from rich.progress import Progress

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.sbp.rules import registry
from experiments.lib import cli
from experiments.lib.ranks import ROOT
from experiments.models import ZOO
from experiments.proofs.execution import MODELS

TABLE = ROOT / "autoddl" / "engine" / "oneflow" / "model" / "refused.json"
DOCUMENT = ROOT / "docs" / "op_rules.md"
# What the `run` of each proof takes beside `progress`; the modules are experiments.proofs.NAME.
ARGUMENTS = {
    "oracle": ("seed", "op_types"),
    "boxings": ("seed",),
    "lowered_steps": ("seed", "models", "folder"),
    "engine": ("seed", "op_types", "models"),
    "execution": ("seed", "models", "folder", "plans", "duplex"),
}
ON_RANKS = ("execution",)
DOCUMENTED = ("oracle", "engine", "execution")


class Report(Protocol):
    """What is printed and written of a proof: a table, a summary, faults, and all that was seen."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def faults(self) -> tuple[str, ...]: ...

    def rows(self) -> Iterable[tuple[str, ...]]: ...

    def summary(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


@click.command(help=__doc__)
@click.option("--oracle", is_flag=True)
@click.option("--boxings", is_flag=True)
@click.option("--lowered-steps", is_flag=True)
@click.option("--engine", is_flag=True)
@click.option("--execution", is_flag=True)
@click.option("--only", "op_types", default="", help="op types, with commas; default all")
@cli.listed(
    "--models",
    MODELS,
    ZOO,
    help="that are lowered or executed, or whose ops the engine is asked about",
)
@click.option("--plans", default=15, show_default=True, help="to execute of every model and mesh")
@click.option("--duplex", is_flag=True, help="execute plans of two halves of the batch in turn")
@cli.folder("out/proofs")
@click.option("--seed", default=0, show_default=True)
@click.option("--write", is_flag=True, help="write the table of refused labels")
@click.option("--document", is_flag=True, help="write docs/op_rules.md")
@click.option("--json", "file", type=click.Path(path_type=Path), help="write all that was seen")
def command(write: bool, document: bool, file: Path | None, op_types: str, **given: Any) -> int:
    """Run the proofs that were asked for, print what they found, return 1 where one fails."""
    given["op_types"] = op_types.split(",") if op_types else None
    missing = [name for name in given["op_types"] or () if registry.find(name) is None]
    if missing:
        raise AutoDDLError(f"--only: no rule for {', '.join(missing)}")
    proofs = [name for name in ARGUMENTS if given[name]]
    proofs = proofs or [name for name in ARGUMENTS if name not in ON_RANKS]
    if write and "engine" not in proofs:
        raise AutoDDLError("--write needs --engine")
    if document and (not set(DOCUMENTED) <= set(proofs) or given["duplex"]):
        raise AutoDDLError("--document needs --oracle --engine --execution, and not --duplex")
    reports = {name: _run(name, {a: given[a] for a in ARGUMENTS[name]}) for name in proofs}
    faults = [f"{name}: {fault}" for name, report in reports.items() for fault in report.faults]
    for name, report in reports.items():
        frame = pd.DataFrame(report.rows(), columns=list(report.columns))
        print(f"{name}\n{frame.to_markdown(index=False, tablefmt='simple', disable_numparse=True)}")
        print(report.summary())
    if document:
        shown = {name: reports[name] for name in DOCUMENTED}
        DOCUMENT.write_text(import_module("experiments.proofs.document").document(**shown))
        print(f"wrote {DOCUMENT}")
    if file is not None:
        inputs = {name: given[name] for name in ("seed", "op_types", "models")}
        inputs["autoddl"] = autoddl.__version__
        seen = {name: report.to_json() for name, report in reports.items()}
        file.write_text(json.dumps({**inputs, **seen}, indent=1) + "\n")
    if write:
        TABLE.write_text(import_module("experiments.proofs.engine").written(reports["engine"]))
        print(f"wrote {TABLE}")
        faults = [fault for fault in faults if not fault.startswith("engine: ")]
    print(*faults, sep="\n", end="\n" * bool(faults))
    return cli.MISSED if faults else 0


def _run(name: str, arguments: dict[str, Any]) -> Report:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        proof = import_module(f"experiments.proofs.{name}")
        report: Report = proof.run(progress=advance, **arguments)
        return report


if __name__ == "__main__":
    sys.exit(cli.run(command, "check_rules"))
