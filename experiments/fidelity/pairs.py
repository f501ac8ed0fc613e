"""Pairs of plans of one model, timed by turns on a testbed: what the second gains over the first.

A testbed is calibrated once; its files and those of the plans are in `FOLDER/BED/`, finished pairs are
lines of `FOLDER/rows.jsonl`, so that a run goes on where it was cut off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from autoddl.api import Plan
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from experiments.fidelity import measure, workload
from experiments.fidelity.workload import Bed
from experiments.lib import frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

# Of the calibration of a testbed: messages as plans have them here, a third of the usual time.
SIZES = ("--minbytes", "1K", "--maxbytes", "4M", "--budget", "100")
COLUMNS: frames.Formats = {
    "what": "{}", "bed": "{}", "model": "{}", "plan": "{}", "first_predicted_ms": "{:.1f}",
    "first_ms": "{:.1f}", "second_predicted_ms": "{:.1f}", "second_ms": "{:.1f}",
    "predicted_gain": "{:.1%}", "gain": "{:.1%}",
}  # fmt: skip

# The multi-layer perceptron is that of fidelity.two_halves: four pairs of layers.
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"widths": (512, *(2048, 512) * 4), "batch": 512}, **workload.MODELS
}  # fmt: skip

Pair = tuple[str, PlanValue, PlanValue, tuple[float, float]]
"""A name, the plans, and the predicted seconds of their steps."""
Make = Callable[[Program, Bed, Path], Iterator[Pair]]
"""Program, testbed, file of its profile → pairs."""


def timed(
    makes: Mapping[str, Make], beds: Sequence[Bed], models: Sequence[str], repetitions: int,
    folder: Path,
) -> pd.DataFrame:  # fmt: skip
    """Return a row for each pair of each model on each testbed, timed now or in a call before.

    `makes` says what pairs there are of each kind.
    """
    store = RowStore(folder / "rows.jsonl")
    found = []
    for bed in beds:
        place = folder / bed.name
        with measure.running(bed) as (run, made):
            profile = measure.calibrate(bed, made, place, SIZES)
            for (what, make), model in product(makes.items(), models):
                program = captured(folder / f"{model}.json", model, "toy", **MODELS[model])
                for name, *plans, said in make(program, bed, profile):
                    key = {"what": what, "bed": bed.name, "model": model, "plan": name}
                    stem = place / f"{what}-{model}-{name}".replace(" ", "-")
                    row = partial(_row, run, model, stem, plans, said, repetitions)
                    found.append(store.once(key, row))
                    print(*key.values(), f"{found[-1]['gain']:.1%}", file=sys.stderr)
    return pd.DataFrame(found)


def _row(
    run: measure.Run, model: str, stem: Path, plans: Sequence[PlanValue], said: tuple[float, float],
    repetitions: int,
) -> Row:  # fmt: skip
    files = [stem.with_name(f"{stem.name}-{number}.json") for number in (1, 2)]
    for file, plan in zip(files, plans, strict=True):
        Plan.of(plan).save(file)
    steps: list[list[float]] = [[], []]
    for number in range(repetitions):
        for which in (0, 1) if number % 2 else (1, 0):
            steps[which].append(measure.step_s(run, model, MODELS[model], files[which]))
    first, second = map(median, steps)
    return {
        "first_predicted_ms": 1e3 * said[0], "second_predicted_ms": 1e3 * said[1],
        "predicted_gain": 1 - said[1] / said[0],
        "first_ms": 1e3 * first, "second_ms": 1e3 * second, "gain": 1 - second / first,
        "samples_ms": [[round(1e3 * s, 3) for s in mine] for mine in steps],
    }  # fmt: skip
