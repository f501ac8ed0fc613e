"""Hold the planner against what it found before: `python -m experiments.bench.frozen`.

Every case is planned and compared with record.csv: costs to 1e-9, better ones are listed, worse ones
make the exit code 1. `--against FOLDER` runs the timed cases in another checkout, too, in turns with
this one, and compares seconds: the fastest of `--repeat` each. What is done is kept in the folder,
until code changes. `--record` makes what was found the record: that of the other checkout if there is
one. Run it where nothing else runs: under load a search may not be done within its budget.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.errors import AutoDDLError
from experiments.bench.frozen.compare import BETTER, OTHER, SAME, WORSE, compared, read, write
from experiments.bench.frozen.side import SECONDS, Side
from experiments.bench.frozen.suite import Case, cases
from experiments.lib import cli, frames
from experiments.lib.ranks import ROOT

HERE = Path(__file__).parent
RECORD = HERE / "record.csv"
SHOWN: frames.Formats = {
    "case": "{}", "old s": "{:.3f}", "now s": "{:.3f}", "ratio": "{:.2f}", "bar": "more than {}",
}  # fmt: skip


@click.command(help=__doc__)
@click.option("--only", multiple=True, help="a section or a case; may be repeated; default all")
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="another checkout, whose seconds are measured in turns")  # fmt: skip
@click.option("--repeat", default=5, show_default=True, help="runs of a timed case with --against")
@click.option("--record", is_flag=True, help="keep what was found as the record")
@cli.folder("out/frozen")
def command(
    only: tuple[str, ...], against: Path | None, repeat: int, record: bool, folder: Path
) -> int:
    """Run the cases, print what differs and the table of seconds."""
    found = chosen(only)
    if record and against is not None:
        now, old = Side(against, folder), None
    else:
        now, old = Side(ROOT, folder), None if against is None else Side(against, folder)
    try:
        errors = _run(found, now, old, repeat if against else 1)
    finally:
        for side in (now, old):
            if side is not None:
                side.end()
    done = [case for case in found if now.done(case)]
    if record:
        _record(done, now)
        return int(bool(errors))
    return int(_report(done, now, old, errors))


def chosen(names: Sequence[str]) -> list[Case]:
    """Return the cases of these sections or names; all where there are none.

    Raises:
        AutoDDLError: there is no such case.
    """
    known = cases()
    for name in names:
        if not any(name in (case.section, case.key) for case in known):
            sections = dict.fromkeys(case.section for case in known)
            raise AutoDDLError(f"--only: got {name!r}; sections are {', '.join(sections)}")
    return [case for case in known if not names or {case.section, case.key} & set(names)]


def _run(found: Iterable[Case], now: Side, old: Side | None, repeat: int) -> dict[str, str]:
    """Run what is missing, in turns; return what failed."""
    errors: dict[str, str] = {}
    found = list(found)
    for number, case in enumerate(found, 1):
        sides = [now, *([old] if old is not None and case.timed else [])]
        for turn in range(repeat if case.timed else 1):
            for side in sides:
                if len(side.done(case)) > turn:
                    continue
                figures = side.run(case)
                text = figures.get("error") or _text(figures)
                name = "" if side is now else " (against)"
                print(f"[{number} of {len(found)}] {case.key}{name}: {text}", flush=True)
                if "error" in figures and side is now:
                    errors[case.key] = figures["error"]
            if case.key in errors:
                break
    return errors


def _text(figures: dict[str, Any]) -> str:
    told = {name: figures[name] for name in ("cost_s", "step_s", "gap", SECONDS) if name in figures}
    return ", ".join(f"{name} {value:.4g}" for name, value in told.items()) or "done"


def _record(done: Iterable[Case], side: Side) -> None:
    """Keep the figures of these cases beside those that the record has of others."""
    kept = read(RECORD) if RECORD.exists() else {}
    kept |= {case.key: side.figures(case) for case in done}
    write(RECORD, {case.key: kept[case.key] for case in cases() if case.key in kept})
    print(f"wrote {RECORD}")


def _report(done: Iterable[Case], now: Side, old: Side | None, errors: dict[str, str]) -> bool:
    """Print all that is not the same, then old and new seconds; tell whether anything is worse."""
    kept = read(RECORD)
    counts = dict.fromkeys((SAME, BETTER, OTHER, WORSE), 0)
    seconds = []
    for key, error in errors.items():
        counts[WORSE] += 1
        print(f"{WORSE:8} {key}: {error}")
    for case in done:
        before, after = kept.get(case.key, {}), now.figures(case)
        for figure, *values, verdict in compared(before, after, case.loose):
            counts[verdict] += 1
            if verdict != SAME:
                print(f"{verdict:8} {case.key}: {figure}: {' -> '.join(map(str, values))}")
        if old is not None and old.done(case):
            before = old.figures(case)
        if case.timed and SECONDS in before:
            ratio = after[SECONDS] / before[SECONDS]
            missed = old is not None and case.slower is not None and ratio > case.slower
            counts[WORSE] += missed
            bar = case.slower if missed else None
            seconds.append((case.key, before[SECONDS], after[SECONDS], ratio, bar))
    if seconds:
        print(frames.text(pd.DataFrame(seconds, columns=list(SHOWN)), SHOWN))
    if old is None:
        print("old seconds are those of the record, perhaps of another machine; --against compares")
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))
    return counts[WORSE] > 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.frozen"))
