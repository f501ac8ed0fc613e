"""The schedule of learning rates, as OneFlow's class for it.

Example: ("step", (("gamma", 0.5), ("step_size", 3))) is
flow.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5).
"""

from __future__ import annotations

from typing import Any

from autoddl.codegen.optimizer_facts import Optimizer
from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import Expr, call
from autoddl.errors import AutoDDLError, shown

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
