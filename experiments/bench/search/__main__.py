"""How planning time and memory grow: `python -m experiments.bench.search`.

Plans GPTs of 12 to 96 layers, and a BERT with experts, on 4 to 8192 devices through autoddl.optimize,
each in a process of its own, and prints seconds by part, peak memory, cost and gap beside their bars:
of several runs that of median seconds. Programs are captured once, with parameters that take no memory.
Everything finished is kept in the folder, so that an interrupted run goes on; `--again` measures anew.
The exit code is 1 where a bar is missed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.errors import AutoDDLError
from experiments.bench.search.gpts import GROWTH, MEMORY, GptCase, cases
from experiments.bench.search.planned import PARTS
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import capture_facts, captured
from experiments.lib.ranks import in_child


def _gb(value: float) -> str:
    return f"{value / 1e9:.2f} GB"


def _percent(value: float) -> str:
    return f"{100 * value:.3f} %"


BARRED = {
    "total_s": ("program to plan", "{:.2f} s".format),
    "peak_bytes": ("peak memory", _gb),
    "gap": ("gap", _percent),
    "capture_s": ("capture", "{:.2f} s".format),
    "capture_bytes": ("capture's peak memory", _gb),
}
"""The figures that may have bars: what is said of them."""
COLUMNS: frames.Formats = {
    "case": "{}", "chosen_mesh": "{}", "ops": "{:,.0f}", **{f"{part}_s": "{:.2f}" for part in PARTS},
    "peak_bytes": _gb, "cost_s": lambda s: f"{s * 1e3:.5g} ms", "gap": _percent,
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--only", sorted({name for case in cases() for name in (case.name, case.group) if name}),
            (), help="cases or groups of them; default all")  # fmt: skip
@click.option("--search", default="exact", show_default=True, help="as of autoddl.optimize")
@click.option("--objective", default="time", show_default=True, help="as of autoddl.optimize")
@click.option("--budget", default=20.0, show_default=True, help="seconds for each search")
@click.option("--seed", default=0)
@click.option("--memory", default=MEMORY, show_default=True, help="of each device")
@click.option("--limit", default=600.0, show_default=True, help="end a case after so many seconds")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True,
              help="measure every case so often, in turns, and take medians")  # fmt: skip
@click.option("--again", is_flag=True, help="measure what the folder has already, too")
@cli.folder("out/bench_search")
def command(
    only: Sequence[str], limit: float, repeat: int, again: bool, folder: Path, **search: Any
) -> int:
    """Measure what is missing, print the table and the bars."""
    found = chosen(only)
    if again:
        (folder / "runs.jsonl").unlink(missing_ok=True)
    rows = run(found, search, folder, repeat=repeat, limit_s=limit)
    return 0 if report(rows, found, folder) else cli.MISSED


def chosen(names: Sequence[str]) -> tuple[GptCase, ...]:
    """Return the cases of these names or groups; all where there are none."""
    return tuple(c for c in cases() if not names or {c.name, c.group} & set(names))


def run(
    found: Sequence[GptCase],
    search: Mapping[str, Any],
    folder: Path,
    *,
    repeat: int,
    limit_s: float,
) -> list[Row]:
    """Return the rows of all cases, of each the one of median seconds; its error if one failed.

    Cases take turns, as the machine is faster at one time than at another. Rows that runs.jsonl lacks
    are measured and added, but for failed ones, which are tried again.
    """
    kept, errors = RowStore(folder / "runs.jsonl"), {}
    keys = {case.name: _key(case, search) for case in found}
    for turn in range(repeat):
        for number, case in enumerate(found, 1):
            key = keys[case.name]
            if len(kept.having(**key)) > turn or case.name in errors:
                continue
            head = f"[{number} of {len(found)}] {case.name}, mesh {case.mesh or 'searched'}"
            print(f"{head}, {search['search']}, turn {turn + 1} of {repeat} …", flush=True)
            try:
                row = kept.add({**key, **measured(case, search, folder, limit_s)})
            except AutoDDLError as error:
                errors[case.name] = str(error)
            print(f"  {errors.get(case.name) or '{total_s:.2f} s'.format(**row)}", flush=True)
    rows = []
    for name, key in keys.items():
        same = sorted(kept.having(**key)[:repeat], key=lambda row: float(row["total_s"]))
        failed = name in errors
        rows.append({**key, "error": errors[name]} if failed else same[(len(same) - 1) // 2])
    return rows


def _key(case: GptCase, search: Mapping[str, Any]) -> Row:
    where = {"mesh": case.mesh or f"all of {case.cluster}", "devices": case.devices}
    return {"case": case.name, "group": case.group, **case.sizes, **where, **search}


def measured(case: GptCase, search: Mapping[str, Any], folder: Path, limit_s: float) -> Row:
    """Plan a case in a process of its own and return its figures.

    Raises:
        AutoDDLError: it failed, or was not done in time.
    """
    sizes = {**case.sizes, "optimizer": "adam"}
    file = folder / "programs" / f"{case.model}-{'-'.join(map(str, case.sizes.values()))}.json"
    captured(file, case.model, "toy", **sizes)
    where = {"mesh": case.mesh} if case.mesh else {"cluster": case.cluster}
    options = json.dumps({**where, "profile": case.profile, **search})
    said = in_child("experiments.bench.search.planned", [str(file), options], limit_s)
    return {**capture_facts(file), **json.loads(said.splitlines()[-1])}


def checks(rows: Iterable[Row], found: Iterable[GptCase]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (what, figure, bar, met) of all that has a bar: single cases, and how groups grow."""
    rows = list(rows)
    for row, case in zip(rows, found, strict=True):
        if row.get("error"):
            yield case.name, row["error"], "a plan", False
            continue
        for name, bar in case.bars.items():
            what, form = BARRED[name]
            met = row[name] <= bar + 1e-9 * (name == "gap")
            yield f"{case.name}: {what}", form(row[name]), form(bar), met
        step_s, baseline_s = row["step_s"], row["best_baseline_step_s"]
        texts = (f"{seconds * 1e3:.4g} ms" for seconds in (step_s, baseline_s))
        what = f"{case.name}: step, against {row['best_baseline']}"
        yield (what, *texts, step_s <= baseline_s * (1 + 1e-9))
    for group, most in GROWTH.items():
        seconds = [r["total_s"] for r in rows if r["group"] == group and not r.get("error")]
        if len(seconds) > 1:
            growth = max(seconds) / seconds[0]
            yield f"growth with {group}", f"{growth:.2f}×", f"{most}×", growth <= most


def report(rows: Sequence[Row], found: Sequence[GptCase], folder: Path) -> bool:
    """Print the table and the bars, write CSV and JSON; tell whether all bars are met."""
    frame = pd.DataFrame(rows)
    print(frames.text(frame, {n: form for n, form in COLUMNS.items() if n in frame}))
    every = list(checks(rows, found))
    for what, figure, bar, met in every:
        print(f"{what}: {figure} (at most {bar}: {'met' if met else 'MISSED'})")
    frames.save(frame, folder, "bench_search", checks=every)
    return all(met for *_, met in every)


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.search"))
