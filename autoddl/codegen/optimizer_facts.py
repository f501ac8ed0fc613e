"""The optimizer of a script, read from the program's updates and groups of parameters.

Example: AdamW with a rate of 0.01 and decay 0.1 for weights, 0.02 and none for biases, is of kind AdamW
and has two groups, of which the second has twice the learning rate and "weight_decay" "0.0".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autoddl.codegen.source.expression import number
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op, ParameterGroup, Program

Options = Mapping[str, str]
Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class OptimizerGroup:
    """Trained parameters that are treated alike.

    `scale` is of the script's learning rate, `options` are Python texts by the optimizer's names.
    """

    parameters: tuple[str, ...]
    scale: float
    options: Options


@dataclass(frozen=True)
class Optimizer:
    """The optimizer: its class, groups of parameters, learning rate and schedule.

    The rate is None where the program does not tell it; the schedule is as in ParameterGroup.
    """

    kind: str
    groups: tuple[OptimizerGroup, ...]
    learning_rate: float | None
    schedule: tuple[Any, ...]

    @property
    def clips(self) -> bool:
        """Tell whether gradients of some group are clipped."""
        return any("clip_grad_max_norm" in group.options for group in self.groups)


def optimizer_of(program: Program) -> Optimizer | None:
    """Return the optimizer that the program's updates do; None if it has none.

    Raises:
        AutoDDLError: updates of several kinds or with several schedules; a kind that scripts have not;
            the program does not tell by how much it clips or decays.
    """
    if all(parameter.update is None for parameter in program.parameters):
        return None
    told = program.groups or _groups_without_rates(program)
    own = {parameter.update for parameter in program.parameters}
    sparse = [
        op for op in program.ops
        if op.phase == "optimizer" and op.is_update and op.name not in own
    ]  # fmt: skip
    if sparse:
        raise AutoDDLError(
            f"codegen: {dict(sparse[0].inputs)['model_0']} is updated by rows (is_sparse=True of "
            "add_optimizer), which scripts can't; plan the graph without"
        )
    kinds = {_kind(update) for group in told for update in _updates(program, group)}
    if kinds == {"Adam", "AdamW"}:  # some groups do not decay
        kinds = {"AdamW"}
    if len(kinds) > 1:
        raise AutoDDLError(
            f"codegen: the parameters have optimizers of {len(kinds)} kinds "
            f"({', '.join(sorted(kinds))}), allowed is one; give all the same kind "
            "(rates, decay and clipping may differ)"
        )
    schedules = {group.schedule for group in told}
    if len(schedules) > 1:
        raise AutoDDLError(
            f"codegen: groups of parameters have {len(schedules)} different schedules of learning rates, "
            "allowed is one; add one optimizer to the graph"
        )
    kind = kinds.pop()
    rate = next((group.learning_rate for group in told if group.learning_rate), 0.0)
    groups = tuple(part for group in told for part in _parts(program, group, kind, rate))
    return Optimizer(kind, groups, rate if program.groups else None, schedules.pop())


def _groups_without_rates(program: Program) -> tuple[ParameterGroup, ...]:
    """Return the trained parameters of a program that has no groups as one, with any rate.

    Raises:
        AutoDDLError: gradients are clipped, or decay is added to them.
    """
    trained = [p for p in program.parameters if p.update is not None]
    for mark, what in (("RegularizeGradient", "weight decay"), ("ClipGradient", "clipping")):
        if any(f"System-{mark}" in str(p.gradient) for p in trained):
            raise AutoDDLError(
                f"codegen: the program has {what} but does not tell by how much; capture the graph again"
            )
    return (ParameterGroup(tuple(p.tensor for p in trained), 1.0),)


def _updates(program: Program, group: ParameterGroup) -> list[Op]:
    updates = [program.parameter[name].update for name in group.parameters]
    return [program.op[update] for update in updates if update is not None]


def _parts(
    program: Program, group: ParameterGroup, kind: str, whole_rate: float
) -> list[OptimizerGroup]:
    """Return a group, parted where its updates have other options."""
    found: dict[tuple[float, tuple[tuple[str, str], ...]], list[str]] = {}
    for name, update in zip(group.parameters, _updates(program, group), strict=True):
        options = dict(_OPTIONS[update.type](update.attr))
        if kind == "AdamW":
            options["weight_decay"] = number(update.attr["weight_decay"])
        elif group.weight_decay:
            options["weight_decay"] = number(group.weight_decay)
        if group.clip:
            norms = zip(("clip_grad_max_norm", "clip_grad_norm_type"), group.clip, strict=True)
            options |= {key: number(value) for key, value in norms}
        share = group.learning_rate / whole_rate if whole_rate else 1.0
        scale = update.attr["learning_rate_scale"] * share
        found.setdefault((scale, tuple(options.items())), []).append(name)
    if len(found) > 1 and group.clip:
        raise AutoDDLError(
            "codegen: gradients are clipped together whose parameters have other options of the "
            "optimizer; give all parameters of a group the same"
        )
    return [
        OptimizerGroup(tuple(names), scale, dict(options))
        for (scale, options), names in found.items()
    ]


def _kind(update: Op) -> str:
    """Return the class of an update.

    Raises:
        AutoDDLError: scripts have none for it.
    """
    if update.type == "adam_update":
        return "AdamW" if update.attr["weight_decay"] else "Adam"
    if update.type not in _KINDS:
        raise AutoDDLError(
            f"codegen: op {update.name} is an update of type {update.type!r}; allowed are SGD (with "
            "momentum), Adam, AdamW, RMSprop and Adadelta"
        )
    return _KINDS[update.type]


def _of_momentum(attr: Attributes) -> Options:
    options = {"momentum": number(attr["beta"])}
    if attr["dampening"]:
        options["dampening"] = number(attr["dampening"])
    return options | {key: "True" for key in ("nesterov", "maximize") if attr[key]}


def _of_adam(attr: Attributes) -> Options:
    options = {"betas": f"({number(attr['beta1'])}, {number(attr['beta2'])})"}
    options["eps"] = number(attr["epsilon"])
    options |= {"amsgrad": "True"} if attr["amsgrad"] else {}
    return options | ({} if attr["do_bias_correction"] else {"do_bias_correction": "False"})


def _of_rmsprop(attr: Attributes) -> Options:
    options = {"alpha": number(attr["decay_rate"]), "eps": number(attr["epsilon"])}
    return options | ({"centered": "True"} if attr["centered"] else {})


def _of_adadelta(attr: Attributes) -> Options:
    options = {"rho": number(attr["rho"]), "eps": number(attr["epsilon"])}
    return options | ({"maximize": "True"} if attr["maximize"] else {})


_KINDS = {
    "sgd_update": "SGD", "momentum_update": "SGD", "rmsprop_update": "RMSprop",
    "adadelta_update": "Adadelta",
}  # fmt: skip
_OPTIONS: Mapping[str, Callable[[Attributes], Options]] = {
    "sgd_update": lambda attr: {}, "momentum_update": _of_momentum, "adam_update": _of_adam,
    "rmsprop_update": _of_rmsprop, "adadelta_update": _of_adadelta,
}  # fmt: skip
