"""The parts of docs/results.md: which script makes each, from which file its table is, what it shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    `name` is that of its JSON file, which has its tables.
    """

    title: str
    kind: str
    module: str
    name: str
    text: str
    pictures: Sequence[str]
    quick: Sequence[str] | None

    def file(self, folder: Path) -> Path:
        """Return its results in a folder of all."""
        return folder / self.module.rpartition(".")[2] / f"{self.name}.json"


PARTS = [
    ResultPart(
        "Predicted against measured steps (figure 4)", MEASURED, "experiments.fidelity", "fidelity",
        "Random and baseline plans on testbeds that were calibrated before.",
        ["fidelity"], quick=None,  # ten minutes; the clock tells how far predictions are off
    ),
    ResultPart(
        "Ours against the experts' plans on the clock (figures 9, 10)", MEASURED,
        "experiments.figures.clock", "clock",
        "Plans of a workload train by turns, each pass in processes of its own. Ratios are of medians "
        "to ours, with 99 % bootstrap intervals where there are two passes or more.",
        ["fig09", "fig10", "moe", "zoo"], quick=["--quick"],
    ),
    ResultPart(
        "Solvers over time (figure 7)", PREDICTED, "experiments.figures.fig07", "fig07",
        "Cost of the best plan so far over that of the best one found by any solver.",
        ["fig07"], quick=["--seconds", "5", "--seeds", "1"],
    ),
    ResultPart(
        "The paper's runs at its scale (figures 9, 10, table III)", PREDICTED,
        "experiments.figures.paper_scale", "paper_scale",
        "Each method on its best mesh, with its best numbers of stages and micro-batches that fit.",
        ["paper_scale"], quick=["--models", "VGG|wide 64"],
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
        for caption, table in data["tables"]:
            parts.append(f"{caption}\n\n{table}\n" if caption else f"{table}\n")
        for name in part.pictures:
            picture = file.with_name(f"{name}.svg")
            if picture.exists():
                copy = place / f"{name}.svg"
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(picture.read_text())
                parts.append(f"![{part.title}: {name}]({place.name}/{copy.name})\n")
    return "\n".join(parts)
