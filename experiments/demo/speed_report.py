"""What act two shows: a table, bars of predicted and measured seconds, and their numbers as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from rich.table import Table

from autoddl.report.plan_text import shown
from autoddl.units import seconds_text
from experiments.demo.speed_act import MODEL, OURS, SIZES, Turns, gains
from experiments.lib import figures

BAR = 0.38  # of the distance of two plans


def table(turns: Turns) -> Table:
    """Return a row for each plan."""
    load, count = os.getloadavg()[0], len(turns[OURS].samples_s)
    found = Table(title=f"seconds of a step, medians of {count} turns, load average {load:.1f}")
    found.add_column("plan")
    for name in ("mesh", "predicted", "measured", "quartiles", "ours is"):
        found.add_column(name, justify="right")
    times = {name: str(one).removesuffix(" as") for name, one in gains(turns).items()}
    for name, one in turns.items():
        low, median, high = map(seconds_text, one.quartiles_s)
        guess = one.plan.estimate
        predicted = f"{seconds_text(guess.step_s)} ± {guess.uncertainty_s / guess.step_s:.0%}"
        cells = str(one.plan.mesh), predicted, median, f"{low} to {high}", times.get(name, "")
        found.add_row(shown(name), *map(shown, cells))
    return found


def save(turns: Turns, file: Path, profile: str) -> None:
    """Write all numbers as FILE.json and draw them."""
    against = gains(turns)
    rows = {
        name: {
            "mesh": str(one.plan.mesh), "predicted_s": one.plan.estimate.step_s,
            "uncertainty_s": one.plan.estimate.uncertainty_s, "measured_s": one.quartiles_s[1],
            "quartiles_s": one.quartiles_s, "samples_s": one.samples_s, "losses": one.losses,
            "ours_is_faster": against[name]._asdict() if name in against else None,
        }
        for name, one in turns.items()
    }  # fmt: skip
    facts = {"model": MODEL, "sizes": SIZES, "profile": profile, "load_average": os.getloadavg()}
    file.with_suffix(".json").write_text(json.dumps({**facts, "plans": rows}, indent=1) + "\n")
    _draw(turns, file)


def _draw(turns: Turns, file: Path) -> None:
    figure, ((axis,),) = figures.panels(size=(7, 4))
    places = np.arange(len(turns))
    low, median, high = np.array([one.quartiles_s for one in turns.values()]).T
    guesses = [one.plan.estimate for one in turns.values()]
    predicted, unsure = [g.step_s for g in guesses], [g.uncertainty_s for g in guesses]
    axis.bar(
        places - BAR / 2, predicted, BAR, yerr=unsure, capsize=3, color=figures.COLOURS[5],
        edgecolor="black", hatch="//", label="predicted, with its uncertainty",
    )  # fmt: skip
    axis.bar(
        places + BAR / 2, median, BAR, yerr=(median - low, high - median), capsize=3,
        color=figures.COLOURS[0], edgecolor="black", label="measured, median and quartiles",
    )  # fmt: skip
    axis.set_xticks(places, list(turns))
    axis.set(ylabel="seconds of a training step")
    words = (
        f"GPT of {SIZES['vocabulary']} words, {SIZES['batch']} × {SIZES['sequence']} tokens a step"
    )
    axis.set_title(f"{words}, {turns[OURS].plan.devices} ranks")
    axis.margins(y=0.2)  # for the legend
    axis.legend(frameon=False)
    figures.save(figure, file)
