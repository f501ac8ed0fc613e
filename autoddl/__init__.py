"""Plan and run distributed training of OneFlow graphs.

`optimize(graph, x, y, mesh="2x2")` returns a plan; `plan.apply(graph)` runs it. Importing this package
imports neither OneFlow nor the planner; both are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autoddl.calls import uncollected
from autoddl.errors import AutoDDLError

if TYPE_CHECKING:
    from autoddl.api import Plan, load, optimize, resume
    from autoddl.engine.oneflow.capture.abstract import abstract_parameters
    from autoddl.engine.oneflow.capture.reader import capture
    from autoddl.perfmodel.profile import load as load_profile
    from autoddl.questions.before_planning import fit, what_if
    from autoddl.sbp.mesh import Mesh
    from autoddl.sbp.program import Program
    from autoddl.sbp.rules.registry import OpRule, index_map
    from autoddl.sbp.rules.registry import register as register_rule
    from autoddl.search.budget import Budget
    from autoddl.trials.trial_settings import Trials

__version__ = "0.1.0"

_HOMES = {
    "Budget": "autoddl.search.budget:Budget",
    "abstract_parameters": "autoddl.engine.oneflow.capture.abstract:abstract_parameters",
    "capture": "autoddl.engine.oneflow.capture.reader:capture",
    "fit": "autoddl.questions.before_planning:fit",
    "optimize": "autoddl.api:optimize",
    "what_if": "autoddl.questions.before_planning:what_if",
    "load": "autoddl.api:load",
    "resume": "autoddl.api:resume",
    "load_profile": "autoddl.perfmodel.profile:load",
    "Plan": "autoddl.api:Plan",
    "Mesh": "autoddl.sbp.mesh:Mesh",
    "Program": "autoddl.sbp.program:Program",
    "OpRule": "autoddl.sbp.rules.registry:OpRule",
    "index_map": "autoddl.sbp.rules.registry:index_map",
    "register_rule": "autoddl.sbp.rules.registry:register",
    "Trials": "autoddl.trials.trial_settings:Trials",
}

__all__ = [
    "AutoDDLError",
    "Budget",
    "Mesh",
    "OpRule",
    "Plan",
    "Program",
    "Trials",
    "abstract_parameters",
    "capture",
    "fit",
    "index_map",
    "load",
    "load_profile",
    "optimize",
    "register_rule",
    "resume",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autoddl' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    with uncollected():
        value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value
