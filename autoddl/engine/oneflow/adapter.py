"""OneFlow behind `autoddl.engine.interface`; what needs OneFlow itself is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from autoddl.codegen.dialect import Dialect
from autoddl.engine.interface import Engine, Probes
from autoddl.engine.oneflow.dialect.local_dialect import LOCAL
from autoddl.engine.oneflow.dialect.script_dialect import DIALECT
from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.engine.oneflow.model.script_model import SCRIPT
from autoddl.plan.value import PlanValue

_HOMES: Mapping[str, str] = {
    "capture": "capture.reader:capture",
    "abstract_parameters": "capture.abstract:abstract_parameters",
    "cuda_environment": "capture.cuda_stand_in:environment",
    "made_on_cpu": "capture.cuda_stand_in:made_on_cpu",
    "traced_as_cuda": "capture.cuda_stand_in:traced_as_cuda",
    "accumulation_steps": "capture.reader:accumulation_steps",
    "signatures": "signatures.unknown_ops:ask",
    "cluster": "run.agree:cluster",
    "agree": "run.agree:from_rank_0",
    "seconds_of": "run.step_timing:seconds_of",
    "leave": "run.step_timing:leave",
    "write_state": "run.saved_state:write",
    "held": "run.global_tensors:held",
    "apply": "run.training_step:OneFlowStep",
}
"""In which module of this package each method of `Engine` is, and what it is called there."""


class OneFlow:
    """OneFlow 0.9."""

    model = ONEFLOW
    probes = Probes(
        links="autoddl.engine.oneflow.probes.link_probe",
        ops="autoddl.engine.oneflow.probes.device_probe",
    )

    def dialect_of(self, plan: PlanValue) -> Dialect:
        parts = plan.parts
        local = any(p.mesh.cuts != p.mesh.shape or p.layout.has_strides for p in parts)
        return LOCAL if local else DIALECT

    def installed(self) -> bool:
        return find_spec("oneflow") is not None

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(f"{__package__}.{module}"), attribute)


class Scripts(OneFlow):
    """Scripts that are generated from plans, and run by OneFlow 0.9."""

    model = SCRIPT


ENGINE, SCRIPTS = cast(Engine, OneFlow()), cast(Engine, Scripts())
