"""How a script makes and uses its optimizer, and the schedule of learning rates.

Example: ("step", (("gamma", 0.5), ("step_size", 3))) is
flow.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5).
"""

from __future__ import annotations

from typing import Any

from autoddl.codegen.optimizer_facts import Optimizer, OptimizerGroup
from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import Expr, call, number, quoted
from autoddl.errors import AutoDDLError, shown

_NONE = '''
def make_optimizer(params, learning_rate):
    """Return None: the planned graph has no optimizer."""


def update(params, optimizer):
    """Change nothing: the planned graph has no optimizer."""
'''
# What OneFlow's classes have no argument for.
_OF_GROUPS = ("clip_grad_max_norm", "clip_grad_norm_type")

_SCHEDULES = {  # the graph's name: OneFlow's class, and the graph's names of its arguments
    "step": ("StepLR", {"step_size": "step_size", "gamma": "gamma"}),
    "multi_step": ("MultiStepLR", {"milestones": "milestones", "gamma": "gamma"}),
    "cosine": ("CosineDecayLR", {"decay_steps": "decay_batches", "alpha": "alpha"}),
    "cosine_annealing": ("CosineAnnealingLR", {"T_max": "t_max", "eta_min": "eta_min"}),
    "cosine_annealing_warm_restarts": (
        "CosineAnnealingWarmRestarts",
        {
            "T_0": "t_initial", "T_mult": "t_mult", "eta_min": "eta_min",
            "decay_rate": "decay_rate", "restart_limit": "restart_limit",
        },
    ),
    "polynomial": (
        "PolynomialLR",
        {
            "decay_batch": "decay_batches", "end_learning_rate": "end_learning_rate",
            "power": "power", "cycle": "cycle",
        },
    ),
    "linear_lr": (
        "LinearLR",
        {
            "start_factor": "start_factor", "end_factor": "end_factor",
            "total_iters": "total_iters",
        },
    ),
    "constant_lr": ("ConstantLR", {"factor": "factor", "total_iters": "total_iters"}),
    "sequential_scheduler": ("SequentialLR", {"schedulers": "schedulers", "milestones": "milestones"}),
}  # fmt: skip


def optimizer_text(
    optimizer: Optimizer | None,
    top: str,
    *,
    stages: bool,
    idle: bool = False,
    clip: str = "optimizer.clip_grad()",
) -> str:
    """Return the functions that make and use the optimizer; with stages, that of a stage's parameters.

    `idle`: some stage has none. `clip` is the call that clips gradients, where some are clipped.
    """
    if optimizer is None:
        return _NONE
    same = _same_options(optimizer)
    name, lines = _groups(optimizer, top, same, stages=stages)
    if idle:
        lines += [f"    if not {name}:", "        return None  # a stage without parameters"]
    written = "".join(f", {key}={value}" for key, value in same.items())
    made = f"return flow.optim.{optimizer.kind}({name}, lr=learning_rate{written})"
    lines += layout.laid_out(made, 4) or [f"    {made}"]
    steps = [clip] if optimizer.clips else []
    steps += ["optimizer.step()", "optimizer.zero_grad()"]
    if idle:
        steps = ["if optimizer is not None:", *(f"    {step}" for step in steps)]
    body, updating = "\n".join(lines), "\n".join(f"    {step}" for step in steps)
    return f'''
def make_optimizer(params, learning_rate):
    """Return the optimizer; its states are cut as the parameters are."""
{body}


def update(params, optimizer):
    """Update the parameters, whose gradients autograd has brought into their states."""
{updating}
'''


def _same_options(optimizer: Optimizer) -> dict[str, str]:
    """Return the options that are the same in all groups, but for those that only groups have."""
    first = optimizer.groups[0].options
    return {
        key: value
        for key, value in first.items()
        if key not in _OF_GROUPS and all(g.options.get(key) == value for g in optimizer.groups)
    }


def _groups(
    optimizer: Optimizer, top: str, same: dict[str, str], *, stages: bool
) -> tuple[str, list[str]]:
    """Return the name of what is trained, and the lines that make it."""
    own = " if name in params" if stages else ""
    if len(optimizer.groups) == 1:
        (group,) = optimizer.groups
        lines = [f"    trained = [params[name] for name in PARAMETERS{own}]"]
        options = _options(group, same)
        if not options:
            return "trained", lines
        return "groups", [*lines, f"    groups = [{_dict('trained', options)}]"]
    prefix = f"{top}." if top else ""
    lines = ["    names = ["]
    for group in optimizer.groups:
        names = ", ".join(quoted(name[len(prefix) :]) for name in group.parameters)
        lines += layout.entry("", f"[{names}]", indent=8)
    lines += ["    ]", "    groups = ["]
    for place, group in enumerate(optimizer.groups):
        trained = f"[params[name] for name in names[{place}]{own}]"
        lines += layout.entry("", _dict(trained, _options(group, same)), indent=8)
    lines += ["    ]"]
    if stages:
        lines += ['    groups = [group for group in groups if group["params"]]']
    return "groups", lines


def _options(group: OptimizerGroup, same: dict[str, str]) -> dict[str, str]:
    rate = {} if group.scale == 1.0 else {"lr": f"learning_rate * {number(group.scale)}"}
    return rate | {key: value for key, value in group.options.items() if key not in same}


def _dict(params: str, options: dict[str, str]) -> str:
    items = {"params": params, **options}
    return f"{{{', '.join(f'{quoted(key)}: {value}' for key, value in items.items())}}}"


def schedule_text(optimizer: Optimizer | None, *, idle: bool = False) -> list[str]:
    """Return the function that makes the schedule, none where learning rates stay as they are.

    `idle`: some stage has no optimizer.

    Raises:
        AutoDDLError: OneFlow has no class for it outside of graphs.
    """
    if optimizer is None or not optimizer.schedule:
        return []
    lines = ["    if optimizer is None:", "        return None"] if idle else []
    made = _made(optimizer.schedule, lines)
    lines += layout.laid_out(f"return {made}", 4) or [f"    return {made}"]
    body = "\n".join(lines)
    return [
        f'''
def make_schedule(optimizer):
    """Return the schedule of the learning rate, which goes on by its step()."""
{body}
'''
    ]


def _made(schedule: tuple[Any, ...], lines: list[str]) -> str:
    """Return the call that makes a schedule, and add lines that make those of which it consists."""
    kind, options = schedule[0], dict(schedule[1])
    if kind not in _SCHEDULES or any(options.pop("interval_rescaling", ())):
        raise AutoDDLError(
            f"codegen: the graph's schedule of learning rates is {shown(kind)}; allowed in scripts are "
            f"{', '.join(name for name, _ in _SCHEDULES.values())}, without rescaling of intervals"
        )
    if "schedulers" in options:
        inner = [_made(part, lines) for part in options["schedulers"]]
        name = f"schedulers{len(lines) or ''}"  # another one for every schedule inside of these
        split = [layout.laid_out(part, 8, end=",") or [f"        {part},"] for part in inner]
        lines += [f"    {name} = [", *(line for part in split for line in part), "    ]"]
        options["schedulers"] = Expr(name)
    name, arguments = _SCHEDULES[kind]
    words = {word: _plain(options[own]) for word, own in arguments.items()}
    return call(f"flow.optim.lr_scheduler.{name}", Expr("optimizer"), **words).text


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
