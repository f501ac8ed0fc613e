"""At least one realistic op of every op type that has a rule: what the proofs and tests run over.

Shapes are small and asymmetric, and most dims are multiples of 4, so that cuts over 2 and 4 devices
exist; attributes are as the engine writes them.
"""

from __future__ import annotations

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases import (
    convolutions,
    cuda,
    elementwise,
    movement,
    optimizers,
    pointwise,
    products,
    reductions,
    routing,
)
from experiments.rule_cases.optimizers import ADAM, MOMENTUM, UPDATE
from experiments.rule_cases.reading import case, case_id

CASES: tuple[OpView, ...] = (
    *elementwise.CASES,
    *products.CASES,
    *convolutions.CASES,
    *movement.CASES,
    *reductions.CASES,
    *optimizers.CASES,
    *pointwise.CASES,
    *routing.CASES,
    *cuda.CASES,
)

__all__ = ["ADAM", "CASES", "MOMENTUM", "UPDATE", "case", "case_id"]
