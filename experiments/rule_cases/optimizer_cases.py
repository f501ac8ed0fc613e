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

_SPARSE = {"weight_decay": 0.3, "learning_rate_scale": 1.5}
_AVERAGE = {"beta": 0.9, "dampening": 0.1, "nesterov": False, "maximize": False}
_MOMENTS = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}
_PLAIN = {"l1": 0.0, "l2": 0.0, "weight_decay": 0.0}

CASES: tuple[OpView, ...] = (
    case("sgd_update", "model: 4 8, model_diff: 4 8, learning_rate: 1 ->", **UPDATE),
    case("momentum_update", "model: 4 8, model_diff: 4 8, momentum: 4 8, learning_rate: 1 ->",
         **MOMENTUM),
    case("momentum_update", "model: 8, model_diff: 8, momentum: 8, learning_rate: 1 ->",
         **MOMENTUM | {"nesterov": True, "maximize": True}),
    case("adam_update", "model: 4 8, model_diff: 4 8, m: 4 8, v: 4 8, learning_rate: 1, "
         "bias_correction1: 1, bias_correction2: 1 ->", **ADAM),
    case("adam_update", "model: 8, model_diff: 8, m: 8, v: 8, max_v: 8, learning_rate: 1 ->",
         **ADAM | {"amsgrad": True}),
    *(
        case("momentum_update", "model: 4, model_diff: 4, momentum: 4, learning_rate: 1 ->",
             **MOMENTUM | decay)
        for decay in ({"l1": 0.0}, _PLAIN)
    ),
    case("sgd_update", "model: 4 8, model_diff: 4 8, learning_rate: 1 ->", **UPDATE | _PLAIN),
    case("adam_update", "model: 8, model_diff: 8, m: 8, v: 8, learning_rate: 1 ->", **ADAM | _PLAIN),
    *(
        case(f"indexed_slices_{kind}", f"model: {table}, model_diff_indices: {ids}, "
             f"model_diff_values: {values}, learning_rate: 1{states.format(table)} ->", **attrs)
        for table, ids, values in (("8 4", "16", "16 4"), ("8 4 2", "2 4", "2 4 4 2"))
        for kind, states, attrs in (
            ("sgd_update", "", _SPARSE),
            ("momentum_update", ", momentum: {0}", _SPARSE | _AVERAGE),
            ("adam_update", ", m: {0}, v: {0}", _SPARSE | _MOMENTS),
        )
    ),
    case("adam_bias_correction_factor", "train_step: 1 -> out: 1", beta=0.9),
)  # fmt: skip
