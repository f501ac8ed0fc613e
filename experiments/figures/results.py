"""The parts of docs/results.md: which script makes each, from which file its table is, what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.fidelity import __main__ as fidelity
from experiments.figures import fig07, paper_scale
from experiments.figures.clock import clock_report
from experiments.lib import frames

Data = dict[str, Any]
MEASURED, PREDICTED = "measured", "predicted"
_HEAD = """<!-- Written by `make experiments`; do not edit. -->

# Results

Every part says whether its numbers were *measured* on ranks of one machine, or *predicted* by the model.
Those that were measured have the model's own error.
"""


@dataclass(frozen=True)
class ResultPart:
    """A part of the page: the module that is run in a folder of its own, with more words if `quick`.

    Where there are none (None) quick runs leave it out.
    `name` is that of its JSON file; `tables` make (caption, frame, formats) of what is in it.
    """

    title: str
    kind: str
    module: str
    name: str
    text: str
    tables: Callable[[Data], Sequence[tuple[str, pd.DataFrame, frames.Formats]]]
    pictures: Sequence[str]
    quick: Sequence[str] | None

    def file(self, folder: Path) -> Path:
        """Return its results in a folder of all."""
        return folder / self.module.rpartition(".")[2] / f"{self.name}.json"


def _clock(data: Data) -> list[tuple[str, pd.DataFrame, frames.Formats]]:
    frame = pd.DataFrame(data["rows"])
    scored = data["scores"]
    said = (
        f"Predicted steps are {scored['mean_error']:.1%} off on average "
        f"({scored['scaled_error']:.1%} if one number scales all of a workload), rank correlation "
        f"{scored['spearman']:.3f}, over {scored['plans']} plans."
        if scored else "Nothing was measured: " + "; ".join(data["not_measured"].values())
    )  # fmt: skip
    missed = "".join(f"\n- missed: {line}" for line in data["missed"])
    means = "How many times as long as ours, geometric means of the workloads bound by bandwidth:"
    return [
        (said + missed, frame, clock_report.COLUMNS),
        (means, pd.DataFrame(data["means"]), clock_report.MEANS),
    ]


def _fidelity(data: Data) -> list[tuple[str, pd.DataFrame, frames.Formats]]:
    return [("", pd.DataFrame(data["scores"]), fidelity.COLUMNS)]


def _searches(data: Data) -> list[tuple[str, pd.DataFrame, frames.Formats]]:
    return [("", pd.DataFrame(data["rows"]), fig07.COLUMNS)]


def _scale(data: Data) -> list[tuple[str, pd.DataFrame, frames.Formats]]:
    frame = pd.DataFrame(data["rows"])
    frame["GiB"] = frame.memory_bytes / 2**30
    saved = "What ours saves of the step and of its communication, beside what the paper measured:"
    return [
        ("", frame, paper_scale.COLUMNS),
        (saved, pd.DataFrame(data["savings"]), paper_scale.SAVINGS),
    ]


PARTS = [
    ResultPart(
        "Predicted against measured steps (figure 4)", MEASURED, "experiments.fidelity", "fidelity",
        "Random and baseline plans on testbeds that were calibrated before.",
        _fidelity, ["fidelity"], quick=None,  # ten minutes; the clock tells how far predictions are off
    ),
    ResultPart(
        "Ours against the experts' plans on the clock (figures 9, 10)", MEASURED,
        "experiments.figures.clock", "clock",
        "Plans of a workload train by turns, each pass in processes of its own. Ratios are of medians "
        "to ours, with 99 % bootstrap intervals where there are two passes or more.",
        _clock, ["fig09", "fig10", "moe", "zoo"], quick=["--quick"],
    ),
    ResultPart(
        "Solvers over time (figure 7)", PREDICTED, "experiments.figures.fig07", "fig07",
        "Cost of the best plan so far over that of the best one found by any solver.",
        _searches, ["fig07"], quick=["--seconds", "5", "--seeds", "1"],
    ),
    ResultPart(
        "The paper's runs at its scale (figures 9, 10, table III)", PREDICTED,
        "experiments.figures.paper_scale", "paper_scale",
        "Each method on its best mesh, with its best numbers of stages and micro-batches that fit.",
        _scale, ["paper_scale"], quick=["--models", "VGG|wide 64"],
    ),
]  # fmt: skip


def page(folder: Path, place: Path) -> str:
    """Return the page of all parts that the folder has; `place` is where its pictures are."""
    parts = [_HEAD]
    for part in PARTS:
        file = part.file(folder)
        if not file.exists():
            parts.append(f"## {part.title}\n\nNot run: `python -m {part.module}`.\n")
            continue
        data = json.loads(file.read_text())
        parts.append(f"## {part.title}\n\n`python -m {part.module}`, {part.kind}. {part.text}\n")
        for caption, frame, formats in part.tables(data):
            kept = {name: form for name, form in formats.items() if name in frame}
            table = frames.text(frame, kept, "pipe")
            parts.append(f"{caption}\n\n{table}\n" if caption else f"{table}\n")
        for name in part.pictures:
            picture = file.with_name(f"{name}.svg")
            if picture.exists():
                copy = place / f"{name}.svg"
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(picture.read_text())
                parts.append(f"![{part.title}: {name}]({place.name}/{copy.name})\n")
    return "\n".join(parts)
