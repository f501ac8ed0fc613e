"""The figures as a table, as CSV and JSON, and whether they are within their bars."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import autoddl
from experiments.bench_search.cases import GROWTH, Case
from experiments.bench_search.worker import PARTS, Search


@dataclass(frozen=True)
class Row:
    """One case with what was measured of it; `error` says why nothing was."""

    case: Case
    search: Search
    figures: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Check:
    """A figure beside its bar; both are texts with units."""

    name: str
    figure: str
    bar: str
    met: bool


def checks(rows: Sequence[Row]) -> Iterator[Check]:
    """Yield every figure that has a bar: of single cases, and how groups of cases grow."""
    for row in rows:
        if row.error:
            yield Check(row.case.name, row.error, "a plan", False)
            continue
        yield from _case_checks(row)
    for group, bar in GROWTH.items():
        seconds = [r.figures["total_s"] for r in rows if r.case.group == group and not r.error]
        if len(seconds) > 1:
            growth = max(seconds) / seconds[0]
            yield Check(f"growth with {group}", f"{growth:.2f}×", f"{bar}×", growth <= bar)


def _case_checks(row: Row) -> Iterator[Check]:
    bars, found, name = row.case.bars, row.figures, row.case.name
    for what, bar, value, form in (
        ("program to plan", bars.seconds, found["total_s"], seconds_text),
        ("peak memory", bars.peak_bytes, found["peak_bytes"], bytes_text),
        ("gap", bars.gap, found["gap"], gap_text),
        ("capture", bars.capture_s, found["capture_s"], seconds_text),
        ("capture's peak memory", bars.capture_bytes, found["capture_bytes"], bytes_text),
    ):
        if bar is not None:
            yield Check(
                f"{name}: {what}", form(value), form(bar), value <= bar + 1e-9 * (what == "gap")
            )
    baseline_s = found["best_baseline_step_s"]
    yield Check(
        f"{name}: step, against {found['best_baseline']}",
        f"{found['step_s'] * 1e3:.4g} ms",
        f"{baseline_s * 1e3:.4g} ms",
        found["step_s"] <= baseline_s * (1 + 1e-9),
    )


def seconds_text(value: float) -> str:
    """Return seconds for a table."""
    return f"{value:.2f} s"


def bytes_text(value: float) -> str:
    """Return bytes as GB."""
    return f"{value / 1e9:.2f} GB"


def gap_text(value: float) -> str:
    """Return a gap in percent."""
    return f"{100 * value:.3f} %"


def table(rows: Sequence[Row]) -> Table:
    """Return one line per case; seconds, GB, cost of a step in ms."""
    made = Table(box=box.SIMPLE, pad_edge=False)
    headings = (
        "mesh",
        "ops",
        *(f"{part} s" for part in PARTS),
        "total s",
        "peak GB",
        "cost ms",
        "gap",
    )
    made.add_column("case", no_wrap=True)
    for heading in headings:
        made.add_column(heading, justify="right")
    for row in rows:
        found = row.figures
        if row.error:
            made.add_row(row.case.name, row.case.mesh, "none")  # the checks say why
            continue
        made.add_row(
            row.case.name,
            found["chosen_mesh"],
            f"{found['ops']:,}",
            *(f"{found[f'{part}_s']:.2f}" for part in (*PARTS, "total")),
            f"{found['peak_bytes'] / 1e9:.2f}",
            f"{found['cost_s'] * 1e3:.5g}",
            gap_text(found["gap"]),
        )
    return made


def report(rows: Sequence[Row], folder: Path, console: Console) -> bool:
    """Print the table and the bars, write bench_search.csv and .json; tell whether all bars are met."""
    console.print(table(rows))
    found = list(checks(rows))
    for check in found:
        verdict = "met" if check.met else "MISSED"
        console.print(
            f"{check.name}: {check.figure} (at most {check.bar}: {verdict})", highlight=False
        )
    write_csv(folder / "bench_search.csv", rows)
    data = {
        "versions": {"autoddl": autoddl.__version__, "numpy": np.__version__},
        "rows": [asdict(row) for row in rows],
        "checks": [asdict(check) for check in found],
    }
    (folder / "bench_search.json").write_text(json.dumps(data, indent=1) + "\n")
    console.print(f"wrote {folder}/bench_search.csv, bench_search.json", highlight=False)
    return all(check.met for check in found)


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    """Write one line per case; seconds and bytes."""
    keys = list(dict.fromkeys(key for row in rows for key in row.figures))
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(
            ["case", "group", "layers", "devices", "mesh", "batch", "search", *keys, "error"]
        )
        for row in rows:
            case = row.case
            writer.writerow(
                [
                    case.name, case.group, case.model.layers, case.devices,
                    case.mesh or f"all of {case.cluster}", case.model.batch, row.search.solver,
                    *(_cell(row.figures.get(key, "")) for key in keys), row.error,
                ]
            )  # fmt: skip


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
