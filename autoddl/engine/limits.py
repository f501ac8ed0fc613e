"""What engines can execute, as data: known where the engine itself is not installed.

Rules (sbp.rules) say what is right; an engine executes a part of it. `limits_of("oneflow").refused`
has for "abs_grad" the label "P dy_0": a partial sum of dy is right there, and OneFlow refuses it.
`limits_of(None)` is the whole space, in which papers count: plans in it can be studied, not applied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from autoddl.errors import AutoDDLError, shown
from autoddl.engine.oneflow.model.memory.compute_stream import AXES as COMPUTE_STREAM_AXES
from autoddl.sbp.mesh import Mesh

ONEFLOW = "oneflow"


class StreamUse(NamedTuple):
    """A way to run redistributions, for a whole plan: beside the computation or in one queue with it."""

    name: str
    compute_stream: bool
    """Redistributions are ops of the compute stream: less memory, and nothing overlaps."""
    devices: tuple[str, ...]
    """Types of devices on which plans of one micro-batch can run so."""
    accumulating: tuple[str, ...]
    """Types of devices on which plans of several micro-batches run so."""
    axes: int | None = None
    """Most mesh axes of more than one device; None: any number."""
    stages: bool = True
    """Whether plans of several stages and one micro-batch can run so."""

    def runs_for(self, device: str, stages: int = 1, micro_batches: int = 1) -> bool:
        """Tell whether plans of so many stages (0: any number) can run so on a type of device."""
        if micro_batches > 1:
            return device in self.accumulating
        return device in self.devices and (self.stages or stages == 1)

    def runs_on(self, mesh: Mesh) -> bool:
        """Tell whether a mesh has not too many axes."""
        return self.axes is None or sum(n > 1 for n in mesh.shape) <= self.axes


class Limits(NamedTuple):
    """What an engine can execute of what is right."""

    axes: int | None
    """Most axes of a mesh that the planner chooses by itself; None: any number."""
    any_order: bool
    """Whether axes may cut one dim in another order than the mesh's."""
    ways: tuple[StreamUse, ...]
    """How redistributions may run, the usual way first."""
    schedules: tuple[str, ...]
    """Of perfmodel.pipeline.schedules, those in which stages can run; plans are for the first."""
    refused: Mapping[str, frozenset[str]]
    """By op type the labels of right signatures that the engine refuses (registry.labelled)."""


def _refused(engine: str) -> Mapping[str, frozenset[str]]:
    """Read a table that `python -m experiments.check_rules --engine --write` has written."""
    file = resources.files("autoddl.engine") / "refused" / f"{engine}.json"
    refused = json.loads(file.read_text())["refused"]
    return {op_type: frozenset(labels) for op_type, labels in refused.items()}


# Jobs that accumulate gradients have to put them on the compute stream of CUDA devices
# (engine/oneflow/run/compile_settings.py).
SEPARATE_STREAMS = StreamUse(
    "separate streams", compute_stream=False, devices=("cpu", "cuda"), accumulating=("cpu",)
)
COMPUTE_STREAM = StreamUse(
    "compute stream", compute_stream=True, devices=("cuda",), accumulating=("cuda",),
    axes=COMPUTE_STREAM_AXES, stages=False,
)  # fmt: skip
ONEFLOW_LIMITS = Limits(
    axes=2,  # nn.Graph redistributes on meshes of one and two axes
    any_order=False,
    ways=(SEPARATE_STREAMS, COMPUTE_STREAM),
    schedules=("oneflow",),
    refused=_refused(ONEFLOW),
)
UNLIMITED = ONEFLOW_LIMITS._replace(axes=None, any_order=True, refused={})
_LIMITS: Mapping[str | None, Limits] = {ONEFLOW: ONEFLOW_LIMITS, None: UNLIMITED}
ENGINES = tuple(name for name in _LIMITS if name is not None)


def limits_of(engine: str | None) -> Limits:
    """Return what an engine can execute; None stands for none, which allows all that is right.

    Raises:
        AutoDDLError: the engine is unknown.
    """
    if not isinstance(engine, str | None) or engine not in _LIMITS:
        raise AutoDDLError(f"engine: got {shown(engine)}; allowed are {', '.join(ENGINES)} or None")
    return _LIMITS[engine]
