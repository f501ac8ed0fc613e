"""At least one realistic op of every op type that has a rule: what the proofs and tests run over.

Shapes are small and asymmetric, and most dims are multiples of 4, so that cuts over 2 and 4 devices
exist; attributes are as the engine writes them.
"""

from __future__ import annotations

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases import (
    convolution_cases,
    cuda_cases,
    elementwise_cases,
    movement_cases,
    optimizer_cases,
    pointwise_cases,
    product_cases,
    reduction_cases,
    routing_cases,
)
from experiments.rule_cases.optimizer_cases import ADAM, MOMENTUM, UPDATE
from experiments.rule_cases.reading import case, case_id, threefold

CASES: tuple[OpView, ...] = (
    *elementwise_cases.CASES,
    *product_cases.CASES,
    *convolution_cases.CASES,
    *movement_cases.CASES,
    *reduction_cases.CASES,
    *optimizer_cases.CASES,
    *pointwise_cases.CASES,
    *routing_cases.CASES,
    *cuda_cases.CASES,
)

__all__ = ["ADAM", "CASES", "MOMENTUM", "UPDATE", "case", "case_id", "threefold"]
