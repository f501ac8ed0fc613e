"""Run the contestants of a workload by turns and keep every finished pass.

A folder of a workload on one testbed has the plans, and `runs.jsonl` with a line for each plan in each
pass: all losses and seconds. A pass is a set of processes of its own, in which plans take turns after
each step (clock_ranks.py); there are several of it where memory does not hold all plans, each with ours.
Where a process dies, that is kept with the plan that was run then, and all is repeated; a plan that dies
again is left out from then on.

Before the first pass the model trains on one device: plans whose losses are others train something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.fidelity import measure
from experiments.fidelity.workload import Bed
from experiments.figures.clock.clock_workloads import ClockWorkload
from experiments.figures.clock.contestants import Contestant
from experiments.lib.frames import Row, RowStore

RANKS = "experiments.figures.clock.clock_ranks"
LIMIT_S = 120.0  # for each plan of a set
ATTEMPTS = 2
# Ops times ranks times plans of a set of processes: 12 GB, as OneFlow takes 0.75 GB of each of 8 ranks
# for the graph of a Transformer of 8 layers (1,013 ops).
OPS = 18_000
SHAPED, ALONE = "shaped links", "one device"
ONE_DEVICE = Contestant((ALONE,), "")

Turn = tuple[int, int]
"""The number of a pass, and of a set of processes in it."""
Samples = Mapping[Turn, Sequence[float]]
"""Seconds of a plan's timed steps."""
Planned = tuple[str, Turn, Sequence[Contestant]]
"""On what links, when, which plans take turns."""


class ClockRuns:
    """The runs of a workload of so many `ops` in a folder: `rounds` of so many `passes`."""

    def __init__(
        self, workload: ClockWorkload, ops: int, folder: Path, rounds: int, passes: int
    ) -> None:
        self.workload, self.rounds, self.passes = workload, rounds, passes
        graphs = OPS // (ops * workload.nodes * workload.ranks)
        self.beside_ours = max(1, graphs - 1)
        self.kept = RowStore(folder / "runs.jsonl")

    def missing(self, contestants: Sequence[Contestant]) -> bool:
        """Tell whether something has not been run."""
        return any(plans for *_, plans in self._left(contestants))

    def carry_out(
        self, contestants: Sequence[Contestant], bed: Bed, told: Callable[[str], None]
    ) -> None:
        """Run what is missing, on one device and on this testbed."""
        alone = Bed(bed.name, 1, 1, None)
        for links, turn, plans in self._wanted(contestants):
            key = self._key(links, turn)
            while left := self._not_run(key, plans):
                names = ", ".join(one.key for one in left)
                told(f"{self.workload.key}, {links}, pass {turn[0]}: {names}")
                with measure.running(alone if links == ALONE else bed) as (run, _):
                    self._run(run, key, left)

    def _run(self, run: measure.Run, key: Row, plans: Sequence[Contestant]) -> None:
        """Run plans by turns; if that fails, keep with which plan."""
        running = self.kept.file.with_suffix(".running")
        running.unlink(missing_ok=True)
        job = {
            "model": self.workload.model, "sizes": dict(self.workload.sizes),
            "plans": [_job_plan(one) for one in plans],
            "rounds": 0 if key["links"] == ALONE else self.rounds,
            "key": key, "result": str(self.kept.file), "running": str(running),
        }  # fmt: skip
        error = run(RANKS, [json.dumps(job)], LIMIT_S * (len(plans) + 1))
        self.kept = RowStore(self.kept.file)
        if error:
            # Where no plan was begun none can be named, so all have failed.
            names = [running.read_text()] if running.exists() else [one.key for one in plans]
            for name in names:
                self.kept.add({**key, "plan": name, "error": error})

    def _wanted(self, contestants: Sequence[Contestant]) -> Iterator[Planned]:
        """Yield what is run, in order."""
        yield ALONE, (0, 0), [ONE_DEVICE]
        ours, *others = contestants
        for number in range(1, self.passes + 1):
            for first in range(0, len(others), self.beside_ours):
                some = others[first : first + self.beside_ours]
                yield SHAPED, (number, first // self.beside_ours), [ours, *some]

    def _left(self, contestants: Sequence[Contestant]) -> Iterator[Planned]:
        """Yield everything with the plans that have not been run there."""
        for links, turn, plans in self._wanted(contestants):
            yield links, turn, self._not_run(self._key(links, turn), plans)

    def _not_run(self, key: Row, plans: Sequence[Contestant]) -> list[Contestant]:
        """Return the plans that are not there yet and do not always die."""
        good = {row["plan"] for row in self.kept.having(**key) if not row.get("error")}
        return [one for one in plans if one.key not in good and not self._dies(one.key)]

    def _dies(self, name: str) -> bool:
        """Tell whether a plan died in all attempts."""
        died = [(r["links"], r["pass"], r["set"]) for r in self._rows(name) if r.get("error")]
        return any(died.count(one) >= ATTEMPTS for one in set(died))

    def _rows(self, name: str) -> list[Row]:
        return self.kept.having(plan=name, steps=self.rounds)

    def _key(self, links: str, turn: Turn) -> Row:
        """Return what tells a set of processes from others; one of fewer steps is another."""
        return {"links": links, "pass": turn[0], "set": turn[1], "steps": self.rounds}

    def samples(self, name: str) -> Samples:
        """Return the seconds of a plan's timed steps by turn, of those that did not fail."""
        return {(r["pass"], r["set"]): r["samples_s"] for r in self._good(name, SHAPED)}

    def _good(self, name: str, links: str) -> list[Row]:
        return [r for r in self._rows(name) if not r.get("error") and r["links"] == links]

    def of(self, name: str) -> dict[str, Any]:
        """Return what else is known of a plan: how far its losses are off, how often it failed."""
        good, alone = self._good(name, SHAPED), self._good(ALONE, ALONE)
        off = [
            max(abs(a - b) / abs(b) for a, b in zip(row["losses"], alone[0]["losses"], strict=True))
            for row in good
            if alone
        ]
        errors = [row["error"] for row in self._rows(name) if row.get("error")]
        return {
            "loss_error": max(off, default=None), "failed": len(errors),
            "error": errors[-1] if errors and not good else "",
        }  # fmt: skip


def _job_plan(one: Contestant) -> dict[str, str]:
    """Return what ranks are told of a plan."""
    if one is ONE_DEVICE:
        return {"plan": ALONE}
    how = {"file": str(one.file)} if one.file is not None else {"mesh": one.mesh}
    return {"plan": one.key, **how}
