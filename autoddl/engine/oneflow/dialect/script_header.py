"""The head of a script: what it is, how it is started, what it imports."""

from __future__ import annotations

import math
import textwrap

from autoddl.codegen.source import source_lines as layout
from autoddl.plan.value import PlanValue
from autoddl.units import bytes_text, seconds_text

_NOTATION = """\
States name one SBP for each axis of the mesh: S(d) cuts dim d, B is the whole tensor, P a summand of
it. Where a state changes, the comment says from what to what, for whom, by which collective, over
which axis, and how many bytes a device has of it. Backward follows by autograd; grad_sbp is the state
in which the gradient comes back.
"""
_SEVERAL = """
The graph has several modules: model.of has the state dicts of all, with the graph's name of the module
before each name ("encoder.weight").
"""
_STANDARD = ("argparse", "itertools", "logging")


def header(plan: PlanValue, body: str, top: str) -> str:
    """Return the script's docstring and the imports that `body` needs."""
    found = "".join(f"import {name}\n" for name in _STANDARD if f"{name}." in body)
    found += "\nimport numpy as np\nimport oneflow as flow\n"
    if "F." in body:
        found += "from oneflow.nn import functional as F\n"
    lines: list[str] = []
    for paragraph in _text(plan, top).strip("\n").split("\n\n"):
        if paragraph.startswith("    "):
            lines += [*paragraph.split("\n"), ""]
        else:
            lines += [*textwrap.wrap(paragraph, layout.WIDTH - 3), ""]
    doc = "\n".join(lines).rstrip()
    return f'"""{doc}\n"""\n\n{found}\n'


def _text(plan: PlanValue, top: str) -> str:
    ranks, estimate = plan.devices, plan.estimate
    meshes = [layout.prose(part.mesh.describe()) for part in plan.parts]
    where = f"mesh {meshes[0]}"
    if plan.pipelined:
        equal = len(set(meshes)) == 1
        where = f"{len(meshes)} stages of " + (where if equal else f"meshes {', '.join(meshes)}")
        where += f", {plan.micro_batches} micro-batches"
    share = estimate.uncertainty_s / max(estimate.step_s, 1e-12)
    predicted = f"{seconds_text(estimate.step_s)} a step (± {share:.0%})"
    profile, graph = layout.prose(plan.profile), layout.prose(plan.fingerprint)
    memory, start = bytes_text(estimate.memory_bytes), _start(plan, ranks)
    return f"""\
Train on {ranks} device{"s" * (ranks > 1)}, {where}: a plan of AutoDDL in OneFlow.

Predicted: {predicted} and {memory} per device, profile {profile}, graph {graph}.

    python -m oneflow.distributed.launch {start} \\
        THIS_FILE --weights model.of

(or python -m autoddl run {start.replace("_", "-")} …) where model.of is the single-device model,
saved with flow.save(model.state_dict(), "model.of"). Checkpoints are such state dicts, too.

{_NOTATION}{"" if top else _SEVERAL}"""


def _start(plan: PlanValue, ranks: int) -> str:
    """Return the launcher's options."""
    nodes = math.prod(level.size for level in plan.mesh.cluster.levels[:-1])
    if nodes == 1 or plan.pipelined:
        return f"--nproc_per_node {ranks}"
    return f"--nproc_per_node {ranks // nodes} --nnodes {nodes} --node_rank K --master_addr HOST"
