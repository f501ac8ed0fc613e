"""docs/against_auto_parallel.md: the table, and under which conditions it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PREFACE = """# autoddl and OneFlow's built-in auto-parallel

Written by `python -m experiments.against_auto_parallel`; do not edit.

OneFlow 0.9 plans while it builds an nn.Graph with `config.enable_auto_parallel(True)` (user settings of
SBP ignored, everything else as it is by default). Both plan the same training steps, one after the other
on the same machine; both plans are then priced by the same model (`autoddl.perfmodel`) under the same
profile. Of OneFlow's plan every state is taken from the job as it is, and redistributions go on the
cheapest path that autoddl knows.

- *s to plan*: from the model to the plan, building or capturing the graph included; in brackets, what the
  graph alone took. OneFlow plans on every rank at once, and the ranks share the cores of this machine:
  *own* are the seconds of processor time of rank 0 alone.
- *compute*, *communication*: the sums over all ops and boxings of a step, in ms; *step* is less
  where they overlap.
- *ratio*: what OneFlow's plan costs (compute + communication) over what ours costs.
"""


@dataclass(frozen=True)
class Side:
    """What one planner did: seconds, and its plan's cost per step in seconds and bytes per device."""

    seconds: float
    graph_s: float
    compute_s: float
    communication_s: float
    step_s: float
    memory_bytes: int

    @property
    def cost_s(self) -> float:
        """Return compute plus communication."""
        return self.compute_s + self.communication_s


@dataclass(frozen=True)
class Row:
    """One model on one mesh; `error` says why OneFlow has no plan."""

    layers: int
    mesh: str
    ops: int
    ours: Side
    gap: float
    peer: Side | None = None
    processor_s: float = 0.0
    error: str = ""


def document(rows: Sequence[Row], conditions: Sequence[str]) -> str:
    """Return the text of the document."""
    return "\n".join([_PREFACE, *(f"- {line}" for line in conditions), "", *table(rows), ""])


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield (
        "| GPT layers | mesh | ops | planner | s to plan (graph) | own | compute | communication | step "
        "| GB per device | ratio |"
    )
    yield "|---:|---|---:|---|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        yield (
            f"| {row.layers} | {row.mesh} | {row.ops:,} | autoddl (gap {100 * row.gap:.2g} %) "
            f"| {_side(row.ours, '')} | 1 |"
        )
        if row.peer is None:
            yield f"| | | | OneFlow | {row.error} | | | | | | |"
        else:
            ratio = row.peer.cost_s / row.ours.cost_s
            yield (f"| | | | OneFlow | {_side(row.peer, f'{row.processor_s:.1f}')} | {ratio:.3f} |")


def _side(side: Side, own: str) -> str:
    milliseconds = (side.compute_s, side.communication_s, side.step_s)
    cells = (
        f"{side.seconds:.1f} ({side.graph_s:.1f})",
        own,
        *(f"{1e3 * s:.1f}" for s in milliseconds),
        f"{side.memory_bytes / 1e9:.2f}",
    )
    return " | ".join(cells)
