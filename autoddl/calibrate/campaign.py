"""What all measurements have in common: parts as data, launches until none is left, kept as they go.

A probe (engine.interface.Probes) is a module that all ranks run on a folder with task.json. Its rank 0
appends a line of JSON to results.jsonl for every part of the task that is done; a line is kept at once,
and a launch whose ranks die or hang is followed by another that does the parts left. So an interrupted
command goes on where it ended. The file of partial results (kept_results) has the same lines.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from autoddl.calibrate.kept_results import KeptResults
from autoddl.calibrate.probe_launches import Retries, carry_out, follow, launches, memory
from autoddl.launch.job import LaunchJob

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of the whole that is done, 0 to 1."""


class CampaignPart(Protocol):
    """What is measured at once and kept when it is done: frozen data."""

    def __hash__(self) -> int: ...

    @property
    def label(self) -> str:
        """Return it in words; parts that differ only in size may have the same."""

    @property
    def weight(self) -> float:
        """Return how long it takes beside others."""

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory it takes on each rank until the ranks end."""

    @property
    def needed(self) -> bool:
        """Tell that it can't be left out."""


P = TypeVar("P", bound=CampaignPart)


class Campaign(KeptResults[P]):
    """Parts to measure, and what came of those that are done."""

    def __init__(
        self, parts: Sequence[P], settings: Mapping[str, Any], partial: Path | None, *, fresh: bool
    ) -> None:
        """Read what the file of partial results has, or make it, as KeptResults."""
        self.parts = parts
        super().__init__(settings, partial, fresh=fresh)

    @abstractmethod
    def task(self, batch: Sequence[P], left: Sequence[P]) -> Any:
        """Return what the ranks are told, as JSON, to measure a batch of the parts that are left."""

    def lines(self, part: P) -> int:
        """Return how often the ranks report a part, each time with more repetitions."""
        return 1

    def run(self, job: LaunchJob, progress: OnProgress = lambda text, done: None) -> None:
        """Launch a probe (`probe_job`) until every part is measured or left out.

        On nodes other than 0, take part in node 0's launches; these learn no results.

        Raises:
            LaunchError: ranks failed again and again, or the time limit was reached.
            AutoDDLError: the file of partial results cannot be written.
        """
        if job.node_rank > 0:
            follow(job)
            return
        spent, total = (sum(part.weight for part in parts) for parts in (self.found, self.parts))
        total = total or 1.0

        def keep(line: Any) -> None:
            nonlocal spent
            part = self.add(line)
            spent += part.weight / self.lines(part)
            progress(part.label, min(1.0, spent / total))

        retries, jobs = Retries(), launches(job)
        progress("starting the ranks", spent / total)
        while left := [p for p in self.parts if p not in self.found and p not in retries.left_out]:
            batch = left[: _fitting(left, job.nproc_per_node)]
            result = carry_out(next(jobs), self.task(batch, left), keep)
            if not result.ok:
                stopped = next((part for part in batch if part not in self.found), None)
                spare = None if stopped is None or stopped.needed else stopped
                retries.account(result, spare, any_done=bool(self.found))


def _fitting(parts: Sequence[CampaignPart], ranks: int) -> int:
    """Return how many of the first parts fit into memory together, or 1.

    Only ending a process frees what a part took there.
    """
    free = memory("MemAvailable") // 2 // ranks
    return max(1, bisect(list(itertools.accumulate(p.memory_bytes for p in parts)), free))
