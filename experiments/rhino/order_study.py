"""The searched order of tasks beside 1F1B (Rhino §6.2): `python -m experiments.rhino.order_study`.

    uneven    twelve pipelines of a perceptron of equal layers, of which stages have unlike numbers:
              predicted steps of 1F1B, of searches with 0, 1 and 2 more micro-batches in flight, and gaps
    measured  two of two stages run by turns, on two ranks of this machine

All is priced with the bundled profile of CPU ranks. Measured steps are medians of turns, in which each
order trains one step, and of launches. The exit code is 1 where a searched order is predicted to be
later than 1F1B.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any

import click
import pandas as pd

import autoddl
from autoddl.api import Plan
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.searched_order import searched_order
from autoddl.perfmodel.pipeline.step_tasks import tasks_of
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

PROFILE, RANKS = "cpu-loopback", "experiments.rhino.order_ranks"
LAYERS = ((1, 4, 2, 5), (5, 1, 3, 3), (2, 1, 6, 3), (4, 2, 1, 1, 2, 2))  # by stage
MICRO_BATCHES = (4, 8, 16)
WIDTH, SAMPLES = 1024, 128  # of a micro-batch: passes take longer than a turn of the scheduler
MEASURED, ROUNDS, LIMIT_S = (((2, 1), 4), ((3, 1), 4)), 9, 300.0
LAUNCHES = 7  # of ranks: from one to the next a step differs by more than from order to order
BED = Bed("order-2", 1, 2, None, None)  # a core for each stage
EXTRA = (0, 1, 2)
COLUMNS: dict[str, frames.Formats] = {
    "uneven": {
        "layers": "{}", "micro-batches": "{}", "1F1B_s": "{:.3f}",
        **{f"+{extra}": "{:.1%}" for extra in EXTRA}, "gap": "{:.1%}",
    },
    "measured": {
        "layers": "{}", "micro-batches": "{}", "1F1B_s": "{:.3f}", "searched_s": "{:.3f}",
        "predicted": "{:.1%}", "measured": "{:.1%}", "least": "{:.1%}", "most": "{:.1%}",
    },
}  # fmt: skip


def planned(layers: Sequence[int], micro_batches: int, folder: Path) -> Plan:
    """Return a plan in 1F1B whose stages have so many layers each."""
    program = captured(folder / f"{len(layers)}-{sum(layers)}-{micro_batches}.json", "mlp", "toy",
                       **sizes(layers, micro_batches))  # fmt: skip
    first = [0, *accumulate(layers)]
    pin = {
        f"*.{2 * layer}": f"stage {stage}"  # a GELU behind each
        for stage, ends in enumerate(pairwise(first))
        for layer in (ends[0], ends[1] - 1)
    }
    return autoddl.optimize(
        program, mesh="1", pipeline=len(layers), micro_batches=micro_batches, profile=PROFILE,
        engine="script", pin=pin, recompute="none", budget=2.0,
    )  # fmt: skip


def sizes(layers: Sequence[int], micro_batches: int) -> dict[str, Any]:
    """Return the sizes of the perceptron."""
    return {"widths": (WIDTH,) * (sum(layers) + 1), "batch": SAMPLES * micro_batches}


def uneven_row(layers: Sequence[int], micro_batches: int, folder: Path) -> Row:
    """Return by how much searched orders shorten a predicted step."""
    plan = planned(layers, micro_batches, folder)
    step, row = plan.pipeline_step, {"1F1B_s": plan.timeline.step_s}
    for extra in EXTRA:
        most = [min(micro_batches, part.in_flight + extra) for part in plan.parts]
        found = searched_order(step, most)
        shorter = 1 - found.step_s / row["1F1B_s"]
        row |= {f"+{extra}": round(shorter, 9) + 0.0, "gap": found.gap}  # sums are rounded
    return row


def measured_row(layers: Sequence[int], micro_batches: int, folder: Path) -> Row:
    """Return the steps of 1F1B and of a searched order, which take turns.

    Raises:
        AutoDDLError: ranks fail.
    """
    place = folder / "x".join(map(str, layers))
    place.mkdir(parents=True, exist_ok=True)
    plans = {"1F1B": planned(layers, micro_batches, folder)}
    most = [min(micro_batches, part.in_flight + EXTRA[-1]) for part in plans["1F1B"].parts]
    orders = searched_order(plans["1F1B"].pipeline_step, most).orders
    tasks = tasks_of(orders, plans["1F1B"].links, micro_batches)
    plans["searched"] = Plan.of(plans["1F1B"].in_own_order(tasks))
    for name, plan in plans.items():
        plan.codegen(place / f"{name}.py")
    job = {
        "scripts": {name: str(place / f"{name}.py") for name in plans}, "rounds": ROUNDS,
        "sizes": sizes(layers, micro_batches), "result": str(place / "seconds.json"),
    }  # fmt: skip
    took: list[dict[str, float]] = []
    with measure.running(BED) as (run, _):
        for _ in range(LAUNCHES):
            if error := run(RANKS, [json.dumps(job)], LIMIT_S):
                raise AutoDDLError(f"{layers}: {error}")
            seconds = json.loads((place / "seconds.json").read_text())
            took.append({name: statistics.median(each) for name, each in seconds.items()})
    told = {name: plan.timeline.step_s for name, plan in plans.items()}
    shorter = sorted(1 - each["searched"] / each["1F1B"] for each in took)
    return {
        **{f"{name}_s": statistics.median(each[name] for each in took) for name in plans},
        "predicted": 1 - told["searched"] / told["1F1B"],
        "measured": statistics.median(shorter), "least": shorter[0], "most": shorter[-1],
    }  # fmt: skip


def _cases(study: str) -> Iterator[tuple[Sequence[int], int]]:
    if study == "uneven":
        yield from product(LAYERS, MICRO_BATCHES)
    else:
        yield from MEASURED


@click.command(help=__doc__)
@cli.listed("--studies", COLUMNS)
@cli.folder("out/rhino/order")
def command(studies: Sequence[str], folder: Path) -> int:
    """Make what is missing, print and write the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    kept, missed = RowStore(folder / "rows.jsonl"), False
    make = {"uneven": uneven_row, "measured": measured_row}
    for study in studies:
        found = []
        for layers, count in _cases(study):
            case = {"study": study, "layers": ", ".join(map(str, layers)), "micro-batches": count}
            found.append(kept.once(case, partial(make[study], layers, count, folder)))
        frame = pd.DataFrame(found)
        missed |= study == "uneven" and bool((frame["+0"] < 0).any())
        print(f"\n{study}\n{frames.text(frame, COLUMNS[study])}", flush=True)
        frames.save(frame, folder, study)
    return cli.MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "rhino"))
