"""Parameter updates."""

from __future__ import annotations

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case

UPDATE = {
    "scale": 0.5, "l1": 0.1, "l2": 0.2, "weight_decay": 0.3, "learning_rate_scale": 1.5,
    "learning_rate_val": 0.0,
}  # fmt: skip
ADAM = {
    **UPDATE, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3, "amsgrad": False,
    "bias_correction1_val": 0.8, "bias_correction2_val": 0.7,
}  # fmt: skip
MOMENTUM = {**UPDATE, "beta": 0.9, "dampening": 0.1, "nesterov": False, "maximize": False}

CASES: tuple[OpView, ...] = (
    case("sgd_update", "model_0: 4 8, model_diff_0: 4 8, learning_rate_0: 1 ->", **UPDATE),
    case(
        "momentum_update",
        "model_0: 4 8, model_diff_0: 4 8, momentum_0: 4 8, learning_rate_0: 1 ->", **MOMENTUM,
    ),
    case(
        "momentum_update",
        "model_0: 8, model_diff_0: 8, momentum_0: 8, learning_rate_0: 1 ->",
        **MOMENTUM | {"nesterov": True, "maximize": True},
    ),
    case(
        "adam_update",
        "model_0: 4 8, model_diff_0: 4 8, m_0: 4 8, v_0: 4 8, learning_rate_0: 1, "
        "bias_correction1_0: 1, bias_correction2_0: 1 ->", **ADAM,
    ),
    case(
        "adam_update",
        "model_0: 8, model_diff_0: 8, m_0: 8, v_0: 8, max_v_0: 8, learning_rate_0: 1 ->",
        **ADAM | {"amsgrad": True},
    ),
    *(
        case(
            "momentum_update",
            "model_0: 4, model_diff_0: 4, momentum_0: 4, learning_rate_0: 1 ->",
            **MOMENTUM | {"l1": 0.0} | decay,
        )
        for decay in ({}, {"l2": 0.0, "weight_decay": 0.0})
    ),
    case(
        "sgd_update", "model_0: 4 8, model_diff_0: 4 8, learning_rate_0: 1 ->",
        **UPDATE | {"l1": 0.0, "l2": 0.0, "weight_decay": 0.0},
    ),
    case(
        "adam_update", "model_0: 8, model_diff_0: 8, m_0: 8, v_0: 8, learning_rate_0: 1 ->",
        **ADAM | {"l1": 0.0, "l2": 0.0, "weight_decay": 0.0},
    ),
    case("adam_bias_correction_factor", "train_step_0: 1 -> out_0: 1", beta=0.9),
)  # fmt: skip
