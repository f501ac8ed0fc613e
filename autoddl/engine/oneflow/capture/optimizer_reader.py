"""What a job says of its optimizer: groups of parameters, learning rates and schedules, decay, clipping.

Example: SGD with a rate of 0.1 under StepLR(optimizer, 3, 0.5) is one group with learning rate 0.1 and
the schedule ("step", (("gamma", 0.5), ("step_size", 3))).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from autoddl.sbp.program import ParameterGroup


def groups_of(job: Any, trained: Container[str]) -> tuple[ParameterGroup, ...]:
    """Return the groups of trained parameters; those that nothing reads are in none."""
    penalty = _penalties(job)
    found = []
    for conf in job.job_conf.train_conf.optimizer_conf:
        own = tuple(name for name in conf.variable_op_names if name in trained)
        if own:
            decay = {penalty.get(name, 0.0) for name in own}
            assert len(decay) == 1, "OneFlow has one weight decay in a group"
            found.append(
                ParameterGroup(
                    parameters=own,
                    learning_rate=_shortest(conf.base_learning_rate),
                    schedule=_schedule(conf.learning_rate_decay),
                    weight_decay=decay.pop(),
                    clip=_clip(conf),
                )
            )
    return tuple(found)


def _penalties(job: Any) -> dict[str, float]:
    """Return by what the squares of variables are weighed in the loss, twice; 0 is left out."""
    found = {}
    for op in job.net.op:
        if op.WhichOneof("op_type") == "variable_conf":
            conf = op.variable_conf
            if conf.HasField("regularizer") and conf.regularizer.l1_l2_conf.l2:
                found[op.name] = _shortest(conf.regularizer.l1_l2_conf.l2)
    return found


def _clip(conf: Any) -> tuple[float, ...]:
    if not conf.HasField("clip_conf"):
        return ()
    own = conf.clip_conf.clip_by_global_norm
    return _shortest(own.max_norm), float(own.norm_type)


def _schedule(conf: Any) -> tuple[Any, ...]:
    """Return a schedule's kind and options, of which some may be schedules; () where it has no kind."""
    kind = conf.WhichOneof("type")
    if kind is None:
        return ()
    own = getattr(conf, kind)
    options = {field.name: _option(value) for field, value in own.ListFields()}
    return kind.removesuffix("_conf"), tuple(sorted(options.items()))


def _option(value: Any) -> Any:
    if hasattr(value, "WhichOneof"):
        return _schedule(value)
    if isinstance(value, bool | int | float | str):
        return value
    return tuple(map(_option, value))


def _shortest(value: float) -> float:
    """Return what was meant by a number that has been kept in float32: 0.1 for 0.10000000149."""
    return float(str(np.float32(value)))
