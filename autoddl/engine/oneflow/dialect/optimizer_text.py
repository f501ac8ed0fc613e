"""How a script makes and uses its optimizer."""

from __future__ import annotations

from autoddl.codegen.script_facts import Optimizer
from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import number, quoted

_NONE = '''
def make_optimizer(params, learning_rate):
    """Return None: the planned graph has no optimizer."""


def update(params, optimizer):
    """Change nothing: the planned graph has no optimizer."""
'''


def optimizer_text(
    optimizer: Optimizer | None, top: str, *, stages: bool, idle: bool = False
) -> str:
    """Return the functions that make and use the optimizer; with stages, that of a stage's parameters.

    `idle`: some stage has none.
    """
    if optimizer is None:
        return _NONE
    name, lines = _groups(optimizer, top, " if name in params" if stages else "")
    options = dict(optimizer.options)
    options |= {"weight_decay": "weight_decay"} if "weight_decay" in optimizer.unknown else {}
    written = "".join(f", {key}={value}" for key, value in options.items())
    made = f"return flow.optim.{optimizer.kind}({name}, lr=learning_rate{written})"
    if idle:
        lines += [f"    if not {name}:", "        return None  # a stage without parameters"]
    lines += layout.laid_out(made, 4) or [f"    {made}"]
    steps = ["optimizer.clip_grad()"] if "max_norm" in optimizer.unknown else []
    steps += ["optimizer.step()", "optimizer.zero_grad()"]
    if idle:
        steps = ["if optimizer is not None:", *(f"    {step}" for step in steps)]
    arguments = "".join(f", {name}" for name in optimizer.unknown)
    body, updating = "\n".join(lines), "\n".join(f"    {step}" for step in steps)
    return f'''
def make_optimizer(params, learning_rate{arguments}):
    """Return the optimizer; its states are cut as the parameters are."""
{body}


def update(params, optimizer):
    """Update the parameters, whose gradients autograd has brought into their states."""
{updating}
'''


def _groups(optimizer: Optimizer, top: str, own: str) -> tuple[str, list[str]]:
    """Return the name of what is trained, and the lines that make it."""
    prefix = f"{top}." if top else ""
    scales = optimizer.scales.items()
    scaled = [(quoted(name[len(prefix) :]), scale) for name, scale in scales if scale != 1.0]
    if scaled:
        return "groups", [
            "    scales = {  # of the learning rate",
            *(f"        {name}: {number(scale)}," for name, scale in scaled),
            "    }",
            "    groups = [",
            '        {"params": [params[name]], "lr": learning_rate * scales.get(name, 1.0)}',
            f"        for name in PARAMETERS{own}",
            "    ]",
        ]
    lines = [f"    trained = [params[name] for name in PARAMETERS{own}]"]
    if "max_norm" not in optimizer.unknown:
        return "trained", lines
    return "groups", [
        *lines,
        '    norms = {"clip_grad_max_norm": max_norm, "clip_grad_norm_type": 2.0}',
        '    groups = [{"params": trained, **norms}]',
    ]
