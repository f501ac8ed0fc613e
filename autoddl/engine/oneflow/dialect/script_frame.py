"""What is around a script: its docstring and imports above, the command line and the loop below."""

from __future__ import annotations

import math
import textwrap

from autoddl.codegen.dialect import ScriptContent
from autoddl.codegen.source import source_lines as layout
from autoddl.plan.value import PlanValue
from autoddl.sbp.program.ops_and_tensors import RANDOM
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
DEFAULT_LEARNING_RATES = {  # where the program does not tell it
    "SGD": 0.1, "Adam": 1e-3, "AdamW": 1e-3, "RMSprop": 1e-3, "Adadelta": 1.0,
}  # fmt: skip

_WHOLE = """\
for step, inputs in zip(range(args.steps), batches(args.data), strict=False):
    loss = train_step(params, optimizer, *inputs)
    logging.info("step %d: loss %.6f", step, as_whole(loss))"""
_ACCUMULATED = """\
stream = batches(args.data)
for step in range(args.steps):
    micro_batches = itertools.islice(stream, MICRO_BATCHES)
    loss = train_step(params, optimizer, micro_batches)
    logging.info("step %d: loss %.6f", step, as_whole(loss))"""
_STAGED = """\
for step, micro_batches in zip(range(args.steps), batches(args.data), strict=False):
    loss = train_step(params, optimizer, micro_batches)
    if loss is not None:
        loss = as_whole(loss)
        if flow.env.get_rank() == np.ravel(RANKS[STAGE])[0]:
            logging.info("step %d: loss %.6f", step, loss)"""


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
    nodes = math.prod(level.size for level in plan.mesh.cluster.levels[:-1])
    if nodes == 1 or plan.pipelined:
        return f"--nproc_per_node {ranks}"
    return f"--nproc_per_node {ranks // nodes} --nnodes {nodes} --node_rank K --master_addr HOST"


def main_function(content: ScriptContent) -> str:
    """Return main() and what calls it."""
    optimizer, staged = content.optimizer, content.stages is not None
    rate = content.learning_rate
    if rate is None and optimizer is not None:
        rate = optimizer.learning_rate
    if rate is None:
        rate = DEFAULT_LEARNING_RATES[optimizer.kind if optimizer else "SGD"]
    random = any(op.type in RANDOM for op in content.plan.program.ops)
    level = "logging.INFO" + ("" if staged else " if flow.env.get_rank() == 0 else logging.ERROR")
    loop = _STAGED if staged else _ACCUMULATED if content.plan.micro_batches > 1 else _WHOLE
    scheduled = optimizer is not None and bool(optimizer.schedule)
    goes_on = ["schedule.step()"]
    if content.has_idle:
        goes_on = ["if schedule is not None:", "    schedule.step()"]
    lines = [
        "parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])",
        *_options(float(rate), random),
        "args = parser.parse_args()",
        f"logging.basicConfig(level={level})",
        *(
            ["flow.manual_seed(args.seed)  # on all ranks: copies of a tensor get the same mask"]
            * random
        ),
        "params = load_parameters(args.weights)",
        "optimizer = make_optimizer(params, args.learning_rate)",
        *(["schedule = make_schedule(optimizer)"] * scheduled),
        *loop.splitlines(),
        *([f"    {line}" for line in goes_on] * scheduled),
        "if args.save:",
        f"    save_checkpoint(args.save, params{', flow.load(args.weights)' * staged})",
    ]
    body = "\n".join(f"    {line}" for line in lines)
    return f'def main():\n{body}\n\n\nif __name__ == "__main__":\n    main()'


def _options(rate: float, random: bool) -> list[str]:
    options = [
        '"--weights", required=True, help="state dict of the single-device model"',
        '"--data", help="an .npz file with the arrays of INPUTS; else random ones"',
        '"--steps", type=int, default=10',
        f'"--learning-rate", type=float, default={rate!r}',
    ]
    if random:
        options.append('"--seed", type=int, default=0, help="of the dropout masks"')
    options.append('"--save", help="where to write the trained state dict"')
    return [f"parser.add_argument({option})" for option in options]
