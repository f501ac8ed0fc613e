"""How planning time and memory grow: `python -m experiments.bench_search`.

Plans GPTs of 12 to 96 layers on 8 to 8192 devices through autoddl.optimize, each in a process of its
own, and prints seconds by part, peak memory, cost and gap beside their bars: of several runs that of
median seconds. Programs are captured once, with parameters that take no memory. Everything finished is
kept in the folder, so that an interrupted run goes on; `--again` measures anew. The exit code is 1
where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from autoddl.arguments import SEARCHES
from autoddl.errors import AutoDDLError
from experiments.bench_search import worker
from experiments.bench_search.cases import MEMORY, Bars, Case, Model, chosen
from experiments.bench_search.report import Row, report
from experiments.bench_search.worker import Search

_EXIT_BAD_INPUT, _EXIT_INTERRUPTED = 2, 130
DEFAULT_SEARCH = "exact"
_WIDTH = 132  # of the table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0, 1 where a bar is missed, 2 for bad input."""
    args = _parser().parse_args(argv)
    if args.task is not None:
        return _child(Path(args.task))
    try:
        if args.search not in SEARCHES:
            raise AutoDDLError(f"--search: got {args.search!r}; there are {', '.join(SEARCHES)}")
        if args.repeat < 1:
            raise AutoDDLError(f"--repeat: got {args.repeat}; allowed are 1 and more")
        found = chosen(args.only.split(",") if args.only else None)
        args.folder.mkdir(parents=True, exist_ok=True)
        rows = run(found, Search(args.search, args.budget, args.seed, args.memory), args)
    except AutoDDLError as error:
        print(f"bench_search: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"bench_search: interrupted; {args.folder} has what is done", file=sys.stderr)
        return _EXIT_INTERRUPTED
    return 0 if report(rows, args.folder, Console(width=_WIDTH)) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench_search", description=__doc__)
    add = parser.add_argument
    add("--only", help="names of cases or groups of them, comma-separated; default all")
    add("--search", default=DEFAULT_SEARCH, help=", ".join(SEARCHES))
    add("--budget", type=float, default=20.0, metavar="SECONDS", help="for each search; default 20")
    add("--seed", type=int, default=0)
    add("--memory", default=MEMORY, help=f"of each device; default {MEMORY}")
    add(
        "--limit",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="end a case after; default 600",
    )
    add(
        "--repeat",
        type=int,
        default=3,
        metavar="TIMES",
        help="measure every case so often, in turns, and take medians; default 3",
    )
    add("--again", action="store_true", help="measure what the folder has already, too")
    add("--folder", type=Path, default=Path("out/bench_search"), help="state and results")
    add("--task", help=argparse.SUPPRESS)
    return parser


def run(found: Sequence[Case], search: Search, args: argparse.Namespace) -> list[Row]:
    """Return the rows of all cases, of each the one of median seconds.

    Cases take turns, as the machine is faster at one time than at another. Rows that runs.jsonl lacks
    are measured and added.
    """
    file = args.folder / "runs.jsonl"
    known = [] if args.again else read(file)
    rows = {case: [r for r in known if (r.case, r.search) == (case, search)] for case in found}
    for turn in range(args.repeat):
        for number, case in enumerate(found, 1):
            if len(rows[case]) > turn or any(row.error for row in rows[case]):
                continue
            head = f"[{number} of {len(found)}] {case.name}, mesh {case.mesh or 'searched'}"
            print(f"{head}, {search.solver}, turn {turn + 1} of {args.repeat} …", flush=True)
            row = _measured(case, search, args.folder, args.limit)
            with file.open("a") as out:
                out.write(json.dumps(asdict(row)) + "\n")
            print(f"  {row.error or '{total_s:.2f} s'.format(**row.figures)}", flush=True)
            rows[case].append(row)
    return [median(rows[case][: args.repeat]) for case in found]


def median(rows: Sequence[Row]) -> Row:
    """Return the row of median seconds; the first that failed, if one did."""
    failed = [row for row in rows if row.error]
    ordered = failed or sorted(rows, key=lambda row: float(row.figures["total_s"]))
    return ordered[0 if failed else (len(ordered) - 1) // 2]


def read(file: Path) -> list[Row]:
    """Return the rows that a file has, without failed ones; a last line that was cut off is dropped."""
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    found = [_row(json.loads(line)) for line in whole.splitlines()]
    return [row for row in reversed(found) if not row.error]  # the newest first


def _row(data: dict[str, Any]) -> Row:
    return Row(_case(data["case"]), Search(**data["search"]), data["figures"], data["error"])


def _case(data: dict[str, Any]) -> Case:
    return Case(**{**data, "model": Model(**data["model"]), "bars": Bars(**data["bars"])})


def _measured(case: Case, search: Search, folder: Path, limit_s: float) -> Row:
    try:
        program = folder / "programs" / f"{case.model.key}.json"
        notes = program.with_suffix(".capture")
        if not notes.exists():
            program.parent.mkdir(exist_ok=True)
            print(f"  capturing {case.model.key}", flush=True)
            task = {"capture": asdict(case.model), "program": str(program)}
            notes.write_text(json.dumps(_in_child(task, folder, limit_s)))
        task = {"plan": asdict(case), "program": str(program), "search": asdict(search)}
        figures = {**json.loads(notes.read_text()), **_in_child(task, folder, limit_s)}
    except AutoDDLError as error:
        return Row(case, search, error=str(error))
    return Row(case, search, figures)


def _in_child(task: dict[str, Any], folder: Path, limit_s: float) -> dict[str, Any]:
    """Do a task in a process of its own and return its figures.

    Raises:
        AutoDDLError: it failed, or was not done in time.
    """
    file = folder / "task.json"
    file.write_text(json.dumps(task))
    command = [sys.executable, "-m", "experiments.bench_search", "--task", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise AutoDDLError(f"not done after {limit_s:g} s") from None
    last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    if done.returncode != 0:
        raise AutoDDLError(last)
    figures: dict[str, Any] = json.loads(file.with_suffix(".result").read_text())
    return figures


def _child(file: Path) -> int:
    """Do the task that a file describes and write the figures beside it."""
    task = json.loads(file.read_text())
    program = Path(task["program"])
    try:
        if "capture" in task:
            figures = worker.capture(Model(**task["capture"]), program)
        else:
            figures = worker.plan(_case(task["plan"]), program, Search(**task["search"]))
    except AutoDDLError as error:
        print(error, file=sys.stderr)
        return _EXIT_BAD_INPUT
    file.with_suffix(".result").write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
