"""The rows of OneFlow and Megatron-LM, each with its prediction or with the reason why it has none.

V100 of 16 and 32 GB are as fast as each other, and have one profile. At 17.5 samples a second LiBai's
step of 6 samples of GPT-2 on one device took 342 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.rewrites.recomputed_layers import in_layers
from experiments.lib.frames import Row
from experiments.published import published_rows
from experiments.published.published_plans import PlanCost, predicted
from experiments.published.published_programs import TracedPrograms, TrainedModel, trained
from experiments.published.published_rows import ONEFLOW, Degrees, PublishedRow

PROFILE = "v100-8x"


def compared(data: Path, folder: Path) -> Iterator[Row]:
    """Yield every row with what is predicted of its plan; rows of both engines share a prediction."""
    every = published_rows.rows(data)
    programs = TracedPrograms(folder, [(trained(row), row.samples) for row in every])
    profile = profiles.load(PROFILE, device_type="cuda")

    @cache
    def priced(
        model: TrainedModel, samples: int, again: bool, degrees: Degrees, count: int
    ) -> PlanCost | str:
        program = programs(model, samples)
        try:
            return predicted(in_layers(program) if again else program, degrees, count, profile)
        except AutoDDLError as error:
            return str(error)

    for row in every:
        again = row.recompute != "no"
        yield told(row, priced(trained(row), row.samples, again, row.degrees, row.micro_batches))


def told(row: PublishedRow, found: PlanCost | str) -> Row:
    """Return a row of the table: what was measured, and what is predicted or why it is not."""
    line: Row = {
        "id": row.id, "engine": ONEFLOW if row.is_oneflow else "Megatron-LM",
        "source": row.source.split()[0].removeprefix("Oneflow-Inc/"),
        "model": row.model.split(",")[0], "precision": row.precision.split()[0],
        "layers": row.layers or None, "width": row.width or None, "degrees": str(row.degrees),
        "devices": row.degrees.devices, "micro_batch": row.micro_batch,
        "micro_batches": row.micro_batches, "data_parallel": row.tp == row.pp == 1,
        "batch": row.batch_per_step, "measured_s": row.step_s, "predicted_s": None,
        "compute_s": None, "communication_s": None, "memory_mib": None, "reason": "",
    }  # fmt: skip
    if isinstance(found, str):
        return line | {"reason": found}
    return line | {
        "predicted_s": found.step_s, "compute_s": found.compute_s,
        "communication_s": found.communication_s, "memory_mib": found.memory_bytes / 2**20,
    }  # fmt: skip
