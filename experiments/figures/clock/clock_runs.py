"""Run the contestants of a workload by turns and keep every finished run.

A folder of a workload on one testbed has the plans, and `runs.jsonl` with a line for each run: all
losses and seconds. A run that failed is repeated once; both are kept. Plans take turns in each pass.
Before the first pass each runs once on links that are not shaped, in the same processes' places: what it
takes longer on the testbed it waits for links. Those with the shortest predicted steps are tried then, as
`optimize(trials=…)` does; which one is the fastest of them no run of a pass has a part in. Quick runs
leave both out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.fidelity import measure
from experiments.figures.clock.clock_workloads import TRIED, ClockWorkload
from experiments.figures.clock.contestants import Contestant
from experiments.lib import ranks
from experiments.lib.frames import Row, RowStore

RANKS = "experiments.figures.clock.clock_ranks"
LIMIT_S = 240.0
ATTEMPTS = 2
SHAPED, PLAIN, ALONE = "shaped links", "plain loopback", "one device"
TRIAL = "shaped links, a trial"

Start = Callable[[Sequence[str]], str]
"""Run the ranks with arguments; return what went wrong, or nothing."""


class ClockRuns:
    """The runs of a workload in a folder: `steps` timed ones at least in each of so many `passes`.

    If they are `quick`, on one device and in passes only.
    """

    def __init__(
        self, workload: ClockWorkload, folder: Path, steps: int, passes: int, quick: bool = False
    ) -> None:
        self.workload, self.steps, self.passes, self.quick = workload, steps, passes, quick
        self.kept = RowStore(folder / "runs.jsonl")

    def missing(self, contestants: Sequence[Contestant]) -> bool:
        """Tell whether something has not been run."""
        return any(True for _ in self._left(contestants))

    def carry_out(
        self, contestants: Sequence[Contestant], run: measure.Run, told: Callable[[str], None]
    ) -> None:
        """Run what is missing."""
        count = self.workload.nodes * self.workload.ranks
        starts: dict[str, Start] = {
            SHAPED: lambda words: run(RANKS, words, LIMIT_S),
            TRIAL: lambda words: run(RANKS, words, LIMIT_S),
            PLAIN: lambda words: ranks.started(RANKS, words, count, LIMIT_S),
            ALONE: lambda words: ranks.started(RANKS, words, 1, LIMIT_S),
        }
        by_name = {one.key: one for one in contestants}
        for links, number, name in list(self._left(contestants)):
            told(f"{self.workload.key}, pass {number}: {name}, {links}")
            key = self._key(name, links, number)
            for _ in range(ATTEMPTS - len(self.kept.having(**key))):
                error = starts[links](self._words(by_name.get(name), key))
                self.kept = RowStore(self.kept.file)
                if not error or self.kept.having(**key, error=None):
                    break
                self.kept.add({**key, "error": error})

    def _left(self, contestants: Sequence[Contestant]) -> Iterator[tuple[str, int, str]]:
        """Yield links, pass and name of what has not been run, in the order in which it is."""
        wanted = [(ALONE, 0, ALONE)]
        if not self.quick:
            wanted += [(PLAIN, 0, one.key) for one in contestants]
            wanted += [(TRIAL, 0, one.key) for one in tried(contestants)]
        for number in range(1, self.passes + 1):  # every other pass from behind
            turn = contestants if number % 2 else contestants[::-1]
            wanted += [(SHAPED, number, one.key) for one in turn]
        for links, number, name in wanted:
            known = self.kept.having(**self._key(name, links, number))
            if not any(not r.get("error") for r in known) and len(known) < ATTEMPTS:
                yield links, number, name

    def _key(self, name: str, links: str, number: int) -> Row:
        """Return what tells a run from others; one of fewer steps is another."""
        return {"plan": name, "links": links, "pass": number, "steps": self.steps}

    def _words(self, one: Contestant | None, key: Row) -> list[str]:
        task, plan = "alone", "-"
        if one is not None and one.file is None:
            task, plan = "peer", one.mesh
        elif one is not None:
            task = "traffic" if key["links"] == SHAPED and key["pass"] == 1 else "plan"
            plan = str(one.file)
        sizes = json.dumps(dict(self.workload.sizes))
        return [
            task, self.workload.model, sizes, str(self.steps), plan, str(self.kept.file),
            json.dumps(key),
        ]  # fmt: skip

    def samples(self, name: str, links: str = SHAPED) -> dict[int, list[float]]:
        """Return the seconds of a plan's timed steps by pass, of those that did not fail."""
        return {row["pass"]: row["samples_s"] for row in self._good(name) if row["links"] == links}

    def chosen(self, contestants: Sequence[Contestant]) -> str | None:
        """Return the name of the plan that was the fastest in the trials, if these were made."""
        steps = {one.key: self.samples(one.key, TRIAL).get(0) for one in tried(contestants)}
        known = {name: median(steps_s) for name, steps_s in steps.items() if steps_s}
        return min(known, key=known.__getitem__, default=None)

    def _good(self, name: str) -> list[Row]:
        rows = self.kept.having(plan=name, steps=self.steps)
        return [row for row in rows if not row.get("error")]

    def of(self, name: str) -> dict[str, Any]:
        """Return what else is known of a plan: its communication alone, how far losses are off."""
        good, alone = self._good(name), self._good(ALONE)
        sent = [row["communication_s"] for row in good if "communication_s" in row]
        off = [
            max(abs(a - b) / abs(b) for a, b in zip(row["losses"], alone[0]["losses"], strict=True))
            for row in good
            if alone
        ]
        rows = self.kept.having(plan=name, steps=self.steps)
        errors = [row["error"] for row in rows if row.get("error")]
        return {
            "measured_communication_s": sent[0] if sent else None,
            "loss_error": max(off, default=None), "failed": len(errors),
            "error": errors[-1] if errors and not good else "",
        }  # fmt: skip


def tried(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Return the plans that are run before one is chosen: those with the shortest predicted steps."""
    plans = sorted(
        (one for one in contestants if one.file is not None), key=lambda one: one.predicted_s
    )
    return plans[:TRIED]
