"""Mixed precision: casts and scales of gradients, and the search for numbers that overflowed.

Counts of non-finite numbers add up over shards. The loss scale and its counter are single numbers
that every device updates alike; references return them under the names of the inputs they replace.
"""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, no_flops, same_dims, uncut
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register

_FLOAT_MAX = float(np.finfo(np.float32).max)


def _identity_map(view: OpView) -> IndexMap:
    return IndexMap(same_dims(view, view.inputs + view.outputs), linear=(linear("in_0"),))


def _identity(op: LocalOp) -> dict[str, Array]:
    return {"out_0": op.inputs["in_0"]}


def _scale_map(view: OpView) -> IndexMap:
    """Map y = x times a one-element tensor: bilinear."""
    factor = next(name for name in view.inputs if name != "x_0")
    return IndexMap(
        {**same_dims(view, ("x_0", "y_0")), **uncut(view, (factor,))},
        linear=(linear("x_0"), linear(factor)),
    )


def _cast_scale(op: LocalOp) -> dict[str, Array]:
    scale = op.view.attr["scale"] * op.inputs["scale_by_tensor_0"].item()
    return {"y_0": op.inputs["x_0"] * scale}


def _mul_by_tensor(op: LocalOp) -> dict[str, Array]:
    return {"y_0": op.inputs["x_0"] * op.inputs["scalar_0"].item()}


def _count_map(view: OpView) -> IndexMap:
    """Map counts over all inputs: they are cut along the same dim, where all of them have it."""
    common = min(len(view.shape[name]) for name in view.inputs)
    names = dim_names(common)
    dims = {name: (*names, *(None,) * (len(view.shape[name]) - common)) for name in view.inputs}
    return IndexMap(
        {**dims, **uncut(view, view.outputs)}, summed=frozenset(n for n in names if n is not None)
    )


def _count(op: LocalOp) -> dict[str, Array]:
    counts = [int(np.sum(~np.isfinite(op.inputs[name]))) for name in op.view.inputs]
    return {"y_0": np.array([sum(counts)])}


def _some_infinite(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw values of which about a third is not finite."""
    return rng.choice(np.array([np.inf, -np.inf, np.nan, 0.5, 1.5, -2.0]), view.shape[operand])


def _schedule_map(view: OpView) -> IndexMap:
    return IndexMap(uncut(view, view.inputs))


def _schedule(op: LocalOp) -> dict[str, Array]:
    """Halve the loss scale after an overflow, double it after enough steps without one."""
    attr, scale = op.view.attr, op.inputs["loss_scale_0"]
    steps = op.inputs["good_step_counter_0"] + 1
    if op.inputs["count_not_finite_0"].item() != 0:
        scale, steps = np.maximum(scale / attr["multiplier"], 1.0), np.zeros_like(steps)
    elif steps.item() >= attr["increment_period"]:
        scale = np.minimum(scale * attr["multiplier"], _FLOAT_MAX)
        steps = np.zeros_like(steps)
    return {"loss_scale_0": scale, "good_step_counter_0": steps}


def _assign_map(view: OpView) -> IndexMap:
    """Map `ref` replaced by `value` or left as it is; the condition is one number."""
    return IndexMap(
        {**same_dims(view, ("ref_0", "value_0")), **uncut(view, ("condition_0",))},
        linear=(linear("ref_0 value_0"),),
    )


def _assign_if(op: LocalOp) -> dict[str, Array]:
    return {"ref_0": op.inputs["value_0" if op.inputs["condition_0"].item() else "ref_0"]}


def _assign_if_not(op: LocalOp) -> dict[str, Array]:
    return {"ref_0": op.inputs["ref_0" if op.inputs["condition_0"].item() else "value_0"]}


def _flag(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw zero or one."""
    return rng.integers(0, 2, view.shape[operand])


def _counter(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw a small number of steps."""
    return rng.integers(1, 9, view.shape[operand])


register(
    *(
        OpRule(name, _identity_map, _identity, no_flops, family="memory")
        for name in ("amp_white_identity", "amp_black_identity")
    ),
    OpRule("fused_cast_scale", _scale_map, _cast_scale),
    OpRule("scalar_mul_by_tensor", _scale_map, _mul_by_tensor),
    *(
        OpRule(
            name,
            _count_map,
            _count,
            lambda view: sum(elements(view.shape[name]) for name in view.inputs),
            family="reduction",
            samplers=dict.fromkeys([f"x_{i}" for i in range(16)], _some_infinite),
        )
        for name in ("count_not_finite", "multi_count_not_finite")
    ),
    OpRule(
        "dynamic_loss_scale_schedule",
        _schedule_map,
        _schedule,
        lambda view: 2.0,
        family="optimizer",
        samplers={"count_not_finite_0": _flag, "good_step_counter_0": _counter},
    ),
    *(
        OpRule(
            name, _assign_map, reference, no_flops, family="memory", samplers={"condition_0": _flag}
        )
        for name, reference in (("assign_if", _assign_if), ("assign_if_not", _assign_if_not))
    ),
)
