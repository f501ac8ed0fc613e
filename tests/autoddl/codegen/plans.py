"""Plans for tests that only read the generated text: no engine needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import autoddl
from autoddl import codegen
from autoddl.api import Plan
from autoddl.engine.oneflow.adapter import ENGINE
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from tests.autoddl.codegen.checked_scripts import CheckedDialect

# What the engine writes into updates; hand-made programs leave it out.
UPDATES: dict[str, dict[str, Any]] = {
    "sgd_update": {},
    "momentum_update": {
        "beta": 0.8999999761581421, "dampening": 0.0, "nesterov": False, "maximize": False,
    },
    "adam_update": {
        "beta1": 0.8999999761581421, "beta2": 0.9990000128746033, "epsilon": 9.99999993922529e-09,
        "weight_decay": 0.0, "amsgrad": False, "do_bias_correction": True,
    },
}  # fmt: skip


def generate(plan: PlanValue, *, checked: bool = False, **options: Any) -> str:
    """Return the script of a plan in OneFlow's dialect; one that is `checked` tests all states."""
    dialect = CheckedDialect() if checked else ENGINE.dialect_of(plan)
    return codegen.generate(plan, dialect, **options)


def planned(program: Program, mesh: str, search: str = "SUMMA") -> Plan:
    """Return a plan for a program whose updates have the attributes of the engine's."""
    return autoddl.optimize(with_updates(program), mesh=mesh, search=search)


def with_updates(program: Program, **changes: Any) -> Program:
    """Return a program whose updates have the attributes of the engine's, or others."""

    def attrs(kind: str) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted({"learning_rate_scale": 1.0, **UPDATES[kind], **changes}.items()))

    ops = [replace(o, attrs=attrs(o.type)) if o.type in UPDATES else o for o in program.ops]
    return replace(program, ops=tuple(ops))
