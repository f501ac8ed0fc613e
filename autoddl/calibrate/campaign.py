"""What all measurements have in common: parts as data, launches until none is left, kept as they go.

A probe (engine.interface.Probes) is a module that all ranks run on a folder with task.json. Its rank 0
appends a line of JSON to results.jsonl for every part of the task that is done; a line is kept at once,
and a launch whose ranks die or hang is followed by another that does the parts left. So an interrupted
command goes on where it ended.

The file of partial results has the same lines, after a first one that names the settings:

    {"format": "autoddl.fit_device.partial", "settings": {"ranks": 2, "quick": true, "ops": []}}
    {"source": "rows 256x512", "ops": [{"op_type": "matmul", "seconds": 0.0012, …}]}
"""

from __future__ import annotations

import itertools
import json
import logging
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from autoddl import store
from autoddl.calibrate.probe_launches import Retries, carry_out, follow, launches, memory
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchJob

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of the whole that is done, 0 to 1."""

ANEW = "--fresh starts anew"


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


class Campaign(ABC, Generic[P]):
    """Parts to measure, and what came of those that are done: `found`."""

    kind: ClassVar[str]
    """Of its partial files."""

    def __init__(
        self, parts: Sequence[P], settings: Mapping[str, Any], partial: Path | None, *, fresh: bool
    ) -> None:
        """Read what the file of partial results has, or make it; without a path nothing is kept.

        Raises:
            AutoDDLError: it is of other settings, not such a file, or cannot be written.
        """
        self.parts, self.partial = parts, partial
        self.found: dict[P, Any] = {}
        head = {"format": f"autoddl.{self.kind}.partial", "settings": settings}
        head = json.loads(json.dumps(head))
        if partial is not None:
            with _explained(partial):
                if fresh or not partial.exists() or not partial.read_bytes().strip():
                    partial.write_text(json.dumps(head) + "\n")
                else:
                    self._resume(partial, head)

    @abstractmethod
    def read(self, line: Any) -> tuple[P, Any]:
        """Return the part that a line is of, and what came of it.

        Raises:
            ValueError, KeyError, TypeError: the line is damaged.
        """

    @abstractmethod
    def task(self, batch: Sequence[P], left: Sequence[P]) -> Any:
        """Return what the ranks are told, as JSON, to measure a batch of the parts that are left."""

    def lines(self, part: P) -> int:
        """Return how often the ranks report a part, each time with more repetitions."""
        return 1

    def add(self, line: Any) -> P:
        """Take a line and keep it; return the part that it is of.

        Raises:
            AutoDDLError: the file cannot be written.
        """
        part, value = self.read(line)
        self.found[part] = value
        if self.partial is not None:
            with _explained(self.partial):
                store.append(self.partial, line)
        return part

    def forget(self) -> None:
        """Delete the file: all is measured and written."""
        if self.partial is not None:
            self.partial.unlink(missing_ok=True)

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

    def _resume(self, partial: Path, head: Mapping[str, Any]) -> None:
        values, damaged = store.read(partial)
        seen = values.pop(1, None)
        if not isinstance(seen, dict) or seen.get("format") != head["format"]:
            raise AutoDDLError(f"{partial}: not a file of partial results; {ANEW}")
        old, new = seen.get("settings") or {}, head["settings"]
        other = [f"{k} {old.get(k)!r} instead of {v!r}" for k, v in new.items() if old.get(k) != v]
        if other:
            raise AutoDDLError(
                f"{partial}: partial results of other settings: {', '.join(other)}; "
                f"give the same ones to go on, or {ANEW}"
            )
        for number, value in values.items():
            try:
                part, result = self.read(value)
            except (ValueError, KeyError, TypeError):
                damaged.append(number)
            else:
                self.found[part] = result
        for number in damaged:
            logger.warning(
                "%s: line %d is truncated or damaged and is left out; its part is measured again",
                partial, number,
            )  # fmt: skip


@contextmanager
def _explained(partial: Path) -> Iterator[None]:
    """Say what to do where a file of partial results cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise AutoDDLError(
            f"partial results {partial}: {error.strerror}; make room there or give another output "
            "with -o"
        ) from None


def _fitting(parts: Sequence[CampaignPart], ranks: int) -> int:
    """Return how many of the first parts fit into memory together, or 1.

    Only ending a process frees what a part took there.
    """
    free = memory("MemAvailable") // 2 // ranks
    return max(1, bisect(list(itertools.accumulate(p.memory_bytes for p in parts)), free))
