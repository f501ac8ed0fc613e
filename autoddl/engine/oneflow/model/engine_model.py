"""OneFlow's EngineModel. It imports nothing of OneFlow: plans can be made where that is not installed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources

from autoddl.engine.model import EngineModel, Limits, StreamUse
from autoddl.engine.oneflow.model.collective_queue import NCCL_QUEUE
from autoddl.engine.oneflow.model.memory.compute_stream import AXES, can_be_chained, is_converted
from autoddl.engine.oneflow.model.memory.device_memory import OneFlowMemory, stage_memory
from autoddl.engine.oneflow.model.memory.kernel_memory import VIEWS
from autoddl.perfmodel.pipeline.schedules import CREDITS
from autoddl.sbp.rules.sparse_updates import PREFIX
from autoddl.sbp.state import NdSbp


def _refused() -> Mapping[str, frozenset[str]]:
    """Read the table that `python -m experiments.check_rules --engine --write` has written."""
    file = resources.files("autoddl.engine.oneflow.model") / "refused.json"
    refused = json.loads(file.read_text())["refused"]
    return {op_type: frozenset(labels) for op_type, labels in refused.items()}


def is_flat(state: NdSbp, mesh: Sequence[int]) -> bool:
    """Tell whether a state is that of one axis of all devices of a mesh.

    From and to others OneFlow makes boxings of its own, over the whole tensor on every device.
    """
    return len({sbp for sbp, size in zip(state, mesh, strict=True) if size > 1}) <= 1


# Jobs that accumulate gradients have to put them on the compute stream of CUDA devices
# (engine/oneflow/run/compile_settings.py).
SEPARATE_STREAMS = StreamUse(
    "separate streams", compute_stream=False, devices=("cpu", "cuda"), accumulating=("cpu",)
)
COMPUTE_STREAM = StreamUse(
    "compute stream", compute_stream=True, devices=("cuda",), accumulating=("cuda",),
    axes=AXES, stages=False, boxes=is_converted,
)  # fmt: skip
ONEFLOW = EngineModel(
    name="oneflow",
    title="OneFlow",
    limits=Limits(
        axes=2,  # nn.Graph redistributes on meshes of one and two axes
        any_order=False,
        one_axis=frozenset(f"{PREFIX}{kind}_update" for kind in ("sgd", "momentum", "adam")),
        refused=_refused(),
        writes_once=frozenset({"cuda"}),  # else it aborts (Oneflow-Inc/oneflow issue 9075)
    ),
    streams=(SEPARATE_STREAMS, COMPUTE_STREAM),
    schedule=CREDITS,
    views=VIEWS,
    memory=OneFlowMemory,
    stage_memory=stage_memory,
    joins_stages=can_be_chained,
    crosses=is_flat,
    collectives={"cuda": NCCL_QUEUE},
    masks_alike=True,  # each begins with the same seed, whatever manual_seed says
)
