"""The rows of Wide & Deep, whose tables are cut over the devices of one node, beside predictions.

The wide table is cut by rows and the deep one by columns, as the measured model cuts them: of 8 devices
each has an eighth of the rows of the one, and 2 of 16 columns of the other. All other layers are data
parallel.

Source: Oneflow-Inc/models RecommenderSystems/wide_and_deep/models/wide_and_deep.py (GlobalWideAndDeep).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.state import B, NdSbp, S
from autoddl.search.baselines.data_parallel import batch_cut
from autoddl.search.baselines.held_states import HeldStates, best
from autoddl.search.network.cost_network import CostNetwork
from experiments.lib.frames import Row
from experiments.published.cluster_rows import PROFILE
from experiments.published.published_plans import predicted
from experiments.published.published_programs import TRACED, TrainedModel, traced
from experiments.published.published_rows import Degrees, lines

CUTS = {"model.wide_table.weight": S(0), "model.deep_table.weight": S(1)}


def cut_tables(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the layout of the tables on a mesh of one axis, and data parallelism beside them."""
    program, mesh = problem.program, problem.mesh.shape
    tables = [t.name for t in program.tensors if t.name in CUTS]
    held = dict.fromkeys([p.tensor for p in program.parameters], NdSbp(B for _ in mesh))
    held |= {name: NdSbp(CUTS[name] if n > 1 else B for n in mesh) for name in tables}
    return [HeldStates({**held, **batch_cut(program, mesh, range(len(mesh)))})]


def _model(line: dict[str, Any]) -> TrainedModel:
    sizes = {
        "vocabulary": line["deep_vocabulary"], "width": line["embedding_width"],
        "layers": line["hidden_layers"], "batch": TRACED,
    }  # fmt: skip
    return TrainedModel("wide_and_deep", "float32", tuple(sorted(sizes.items())), "criteo")


def compared(data: Path, programs: Path) -> Iterator[Row]:
    """Yield every row with its predicted step and memory."""
    every = lines(data, "wide_and_deep_oneflow_0.6")
    profile, layout = profiles.load(PROFILE, device_type="cuda"), partial(best, family=cut_tables)
    for line in every:
        degrees = Degrees(line["devices"], 1, 1, 1, line["devices"])
        row: Row = {
            **line, "measured_s": line["step_ms"] / 1e3, "measured_mib": line["memory_mb"],
            "predicted_s": None, "predicted_mib": None, "reason": "",
        }  # fmt: skip
        try:
            part = traced(programs, _model(line), line["batch_per_step"])
            found = predicted(part, degrees, 1, profile, layout)
        except AutoDDLError as error:
            yield row | {"reason": str(error)}
            continue
        yield row | {"predicted_s": found.step_s, "predicted_mib": found.memory_bytes / 2**20}
