"""What a rank of a trial does when its script calls `optimize`: plan, or time a plan, and end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autoddl import store
from autoddl.engine import engines
from autoddl.engine.interface import Engine, TrainingStep
from autoddl.errors import AutoDDLError
from autoddl.plan import codec
from autoddl.plan.value import PlanValue

WARM_UP = 3  # the first step compiles


@dataclass(frozen=True)
class TrialTask:
    """Time so many `steps` of the plan in a file; without one, plan the `top` best into a folder.

    It is of the call of `optimize` that plans the `program` with this fingerprint, or of the first one.
    """

    folder: str
    top: int
    steps: int
    program: str | None = None
    plan: str | None = None


class RankOfTrial:
    """A task, and the file to which rank 0 writes what came of it."""

    def __init__(self, task: TrialTask, results: Path) -> None:
        self.task, self.results = task, results

    def is_for(self, fingerprint: str) -> bool:
        """Tell whether a call of `optimize` for this program is the one that is meant."""
        return self.task.program in (None, fingerprint)

    def carry_out(
        self,
        engine: Engine,
        fingerprint: str,
        plan: Callable[[int], Sequence[PlanValue]],
        apply: Callable[[PlanValue], TrainingStep],
        call: tuple[Sequence[Any], Mapping[str, Any]],
    ) -> NoReturn:
        """Do the task and end the process.

        `plan` makes so many plans of the program with this fingerprint; `apply` makes the step of one,
        which is called with `call`.
        """
        task = self.task
        if task.plan is None:

            def make() -> PlanValue:
                plans = plan(task.top)
                for each in plans:
                    codec.save(each, Path(task.folder, f"{each.states}.json"))
                self._tell({"program": fingerprint, "plans": [each.states for each in plans]})
                return plans[0]

            try:
                engine.agree(make)
            except AutoDDLError as error:
                self._tell({"error": str(error)})
        else:
            step = apply(codec.load(task.plan, engines.model))
            self._tell({"seconds": engine.seconds_of(step, call, WARM_UP, task.steps)})
        engine.leave()

    def _tell(self, line: Mapping[str, Any]) -> None:
        if os.environ.get("RANK") == "0":
            store.append(self.results, line)


_here: list[RankOfTrial] = []


def begin(rank: RankOfTrial) -> None:
    """Let the next call of `optimize` in this process that is meant carry out a task."""
    _here[:] = [rank]


def here() -> RankOfTrial | None:
    """Return what this process is to carry out, if it is a rank of a trial."""
    return _here[0] if _here else None
