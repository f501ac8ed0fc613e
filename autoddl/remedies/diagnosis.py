"""What a search without a plan leaves to say: what is needed, what is in the way, and what helps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoddl.errors import printable, shortened
from autoddl.remedies.holdings import Holding
from autoddl.search.budget import Budget
from autoddl.units import bytes_text, seconds_text

MOST_NAME = 60  # characters of a name of tensors


@dataclass(frozen=True)
class Change:
    """Options in the place of the user's; None leaves one out. `batch` are samples, fewer and before."""

    options: Mapping[str, Any]
    batch: tuple[int, int] | None = None

    def text(self, *, terminal: bool = False) -> str:
        """Return what is to be written: `recompute="layers"`, or `--recompute layers`."""
        given = _terminal if terminal else _python
        without = [name for name, value in self.options.items() if value is None]
        words = [given(name, value) for name, value in self.options.items() if value is not None]
        told = (" " if terminal else ", ").join(words)
        if without:
            names = [_flag(name) if terminal else name for name in without]
            told += f"{' ' * bool(told)}without {' and '.join(names)}"
        if self.batch is not None:
            few, before = self.batch
            told += f"inputs of {few:,} sample{'s' * (few > 1)}, not {before:,}"
        return told


def _python(name: str, value: Any) -> str:
    return f"{name}={json.dumps(value) if isinstance(value, str) else repr(value)}"


def _terminal(name: str, value: Any) -> str:
    return f"{_flag(name)} {shlex.quote({True: 'yes', False: 'no'}.get(value, str(value)))}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Remedy:
    """A change with which a plan fits, the step that it takes and its memory; `note` tells more of it."""

    change: Change
    step_s: float
    memory_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Why no plan fits into `limit_bytes`, and what helps.

    The plan that needs least needs `needed_bytes`, of which `holdings` are the largest. Each of the
    `remedies`, the cheapest first, was planned with a `budget`; those in `vain` did not help, those
    `untried` were left when all budgets were spent. `searched` says what needs no remedy.
    """

    limit_bytes: int
    needed_bytes: int | None
    holdings: tuple[Holding, ...]
    remedies: tuple[Remedy, ...]
    vain: tuple[Change, ...]
    untried: tuple[Change, ...]
    budget: Budget
    searched: tuple[str, ...] = ()

    def lines(self, *, terminal: bool = False) -> Sequence[str]:
        """Return a table, with options as Python has them, or the command line."""
        held = [
            (each.role, shortened(each.name, MOST_NAME), bytes_text(each.size_bytes))
            for each in self.holdings
        ]
        helps = [
            (each.change.text(terminal=terminal), f"step {seconds_text(each.step_s)}",
             bytes_text(each.memory_bytes), each.note)
            for each in self.remedies
        ]  # fmt: skip
        lines = []
        if held:
            lines += ["largest per device in the plan that needs least:", *_table(held)]
        if helps:
            lines += [f"what helps, planned with {_words(self.budget)} each:", *_table(helps)]
        for title, changes in (("tried in vain", self.vain), ("not tried", self.untried)):
            if changes:
                told = "; ".join(each.text(terminal=terminal) for each in changes)
                lines.append(f"{title}: {told}")
        if self.searched:
            lines.append(f"searched in any case: {', '.join(self.searched)}")
        return [printable(line) for line in lines]


def _words(budget: Budget) -> str:
    if budget.evaluations is None:
        return f"{budget.seconds or 0.0:.3g} s"
    return f"{budget.evaluations:,.0f} evaluations"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(map(str.ljust, row, widths)).rstrip()  # the last column may be empty
        for row in rows
    ]
