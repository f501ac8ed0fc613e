"""The parts of a script that are (nearly) the same for every plan, as text."""

from __future__ import annotations

import math
import textwrap

from autoddl.codegen import lines as layout
from autoddl.codegen.facts import Optimizer
from autoddl.plan import Plan
from autoddl.table import bytes_text, seconds_text

BATCH_TEXT = '''
def as_global(array, sbp):
    """Return an array that every rank has as a global tensor in a state."""
    tensor = flow.tensor(array, device=DEVICE)
    return tensor.to_global(placement=PLACEMENT, sbp=WHOLE).to_global(sbp=sbp)


def as_whole(tensor):
    """Return the whole of a global tensor as an array, on every rank."""
    return tensor.to_global(sbp=WHOLE).to_local().numpy().copy()
'''

PART_TEXT = '''
def part(params, module):
    """Return the parameters of one module, by their names inside it."""
    start = f"{module}."
    return {name[len(start) :]: t for name, t in params.items() if name.startswith(start)}
'''

CHECK_TEXT = '''
UNPLANNED = []


def expect(tensor, sbp, op):
    """Note where OneFlow has chosen another state than the plan."""
    if tuple(tensor.sbp) != tuple(sbp):
        UNPLANNED.append((op, str(tensor.sbp), str(sbp)))
'''

STEP_TEXT = '''
def train_step(params, optimizer, *inputs):
    """Run forward, backward and update on one batch of global tensors; return the loss."""
    loss = loss_of(params, *inputs)
    loss.backward()
    update(params, optimizer)
    return loss
'''

CHECKPOINT_TEXT = '''
def load_parameters(path):
    """Return the tensors of the single-device model's state dict, in their states.

    What else the file holds (counters of steps, say) stays as it is and is saved again.
    """
    stored = flow.load(path)
    missing = [name for name in {**PARAMETERS, **BUFFERS} if name not in stored]
    if missing:
        raise SystemExit(f"{path}: no {missing[0]} in it; save the planned model's state_dict()")
    params = dict(stored)
    for name, sbp in BUFFERS.items():
        params[name] = as_global(stored[name].numpy(), sbp)
    for name, sbp in PARAMETERS.items():
        params[name] = flow.nn.Parameter(as_global(stored[name].numpy(), sbp))
    return params


def save_checkpoint(path, params):
    """Write a state dict that the single-device model and this script can load."""
    state = {}
    for name, tensor in params.items():
        state[name] = flow.tensor(as_whole(tensor)) if tensor.is_global else tensor
    if flow.env.get_rank() == 0:
        flow.save(state, path)
'''

MAIN_TEXT = '''
def batches(path):
    """Yield batches of global tensors: the arrays of an .npz file cut up, or random numbers."""
    arrays = dict(np.load(path)) if path else {}
    for step in itertools.count():
        rng, batch = np.random.default_rng(step), []
        for name, (shape, dtype, sbp, below) in INPUTS.items():
            if path:
                size = shape[0]
                first = step % max(len(arrays[name]) // size, 1) * size
                array = arrays[name][first : first + size]
            else:
                array = rng.integers(0, below, shape) if below else rng.normal(size=shape)
            batch.append(as_global(array.astype(dtype), sbp))
        yield batch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", required=True, help="state dict of the single-device model")
    parser.add_argument("--data", help="an .npz file with the arrays of INPUTS; else random ones")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--save", help="where to write the trained state dict")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO if flow.env.get_rank() == 0 else logging.ERROR)
    params = load_parameters(args.weights)
    optimizer = make_optimizer(params, args.learning_rate)
    for step, inputs in zip(range(args.steps), batches(args.data), strict=False):
        loss = train_step(params, optimizer, *inputs)
        logging.info("step %d: loss %.6f", step, as_whole(loss))
    if args.save:
        save_checkpoint(args.save, params)


if __name__ == "__main__":
    main()
'''


def header(plan: Plan, body: str, top: str) -> str:
    """Return the script's docstring and the imports that `body` needs."""
    ranks = plan.mesh.size * (plan.pipeline.stages if plan.pipeline else 1)
    estimate = plan.estimate
    share = estimate.uncertainty_s / max(estimate.step_s, 1e-12)
    start = f"--nproc_per_node {ranks}"
    nodes = math.prod(level.size for level in plan.mesh.cluster.levels[:-1])
    if nodes > 1 and plan.pipeline is None:
        start = (
            f"--nproc_per_node {ranks // nodes} --nnodes {nodes} --node_rank K --master_addr HOST"
        )
    where = f"mesh {plan.mesh.describe()}"
    if plan.pipeline is not None:
        where = (
            f"{plan.pipeline.stages} stages of {where}, {plan.pipeline.micro_batches} micro-batches"
        )
    predicted = f"{seconds_text(estimate.step_s)} a step (± {share:.0%})"
    memory = bytes_text(estimate.memory_bytes)
    text = f"""\
Train on {ranks} device{"s" * (ranks > 1)}, {where}: a plan of AutoDDL in OneFlow.

Predicted: {predicted} and {memory} per device, profile {plan.profile}, graph {plan.fingerprint}.

    python -m oneflow.distributed.launch {start} \\
        THIS_FILE --weights model.of

(or python -m autoddl run {start.replace("_", "-")} …) where model.of is the single-device model,
saved with flow.save(model.state_dict(), "model.of"). Checkpoints are such state dicts, too.

States name one SBP for each axis of the mesh: S(d) cuts dim d, B is the whole tensor, P a summand of
it. Where a state changes, the comment says from what to what, for whom, by which collective, over
which axis, and how many bytes a device has of it. Backward follows by autograd; grad_sbp is the state
in which the gradient comes back.
"""
    if not top:
        text += """
The graph has several modules: model.of has the state dicts of all, with the graph's name of the module
before each name ("encoder.weight").
"""
    lines = []
    for paragraph in text.strip("\n").split("\n\n"):
        if paragraph.startswith("    "):
            lines += [*paragraph.split("\n"), ""]
        else:
            lines += [*textwrap.wrap(paragraph, layout.WIDTH - 3), ""]
    imports = ["argparse", "itertools", "logging"]
    doc = '"""' + "\n".join(lines).rstrip() + '\n"""\n\n'
    found = "".join(f"import {name}\n" for name in imports if f"{name}." in body)
    found += "\nimport numpy as np\nimport oneflow as flow\n"
    if "F." in body:
        found += "from oneflow.nn import functional as F\n"
    return f"{doc}{found}\n"


def main_text(base: str, rate: float, optimizer: Optimizer | None, *, random: bool) -> str:
    """Return `base` with the options of this script: what a captured graph does not tell."""
    found = base.replace("LEARNING_RATE", repr(rate))
    made = "make_optimizer(params, args.learning_rate"
    last = '    parser.add_argument("--save"'
    for name in optimizer.unknown if optimizer else ():
        option = f'"--{name.replace("_", "-")}"'
        line = f'    parser.add_argument({option}, type=float, required=True, help="as planned")\n'
        found = found.replace(last, line + last)
        found = found.replace(made, f"{made}, args.{name}")
        made = f"{made}, args.{name}"
    if random:
        line = (
            '    parser.add_argument("--seed", type=int, default=0, help="of the dropout masks")\n'
        )
        found = found.replace(last, line + last)
        begin = "    params = load_parameters"
        seeded = "    flow.manual_seed(args.seed)  # on all ranks: copies of a tensor get the same mask\n"
        found = found.replace(begin, seeded + begin)
    return found


def optimizer_text(
    optimizer: Optimizer | None, top: str, *, stages: bool, idle: bool = False
) -> str:
    """Return the functions that make and use the optimizer; with stages, that of a stage's parameters.

    `idle`: some stage has none.
    """
    if optimizer is None:
        return '''
def make_optimizer(params, learning_rate):
    """Return None: the planned graph has no optimizer."""


def update(params, optimizer):
    """Change nothing: the planned graph has no optimizer."""
'''
    own = " if name in params" if stages else ""
    scaled = {name: scale for name, scale in optimizer.scales.items() if scale != 1.0}
    clipped = "max_norm" in optimizer.unknown
    lines, trained = [f"    trained = [params[name] for name in PARAMETERS{own}]"], "trained"
    if scaled:
        prefix = f"{top}." if top else ""
        lines = [
            "    scales = {  # of the learning rate",
            *(f'        "{name[len(prefix) :]}": {scale!r},' for name, scale in scaled.items()),
            "    }",
            "    groups = [",
            '        {"params": [params[name]], "lr": learning_rate * scales.get(name, 1.0)}',
            f"        for name in PARAMETERS{own}",
            "    ]",
        ]
        trained = "groups"
    elif clipped:
        lines += [
            '    norms = {"clip_grad_max_norm": max_norm, "clip_grad_norm_type": 2.0}',
            '    groups = [{"params": trained, **norms}]',
        ]
        trained = "groups"
    options = dict(optimizer.options)
    options |= {"weight_decay": "weight_decay"} if "weight_decay" in optimizer.unknown else {}
    written = "".join(f", {key}={value}" for key, value in options.items())
    made = f"return flow.optim.{optimizer.kind}({trained}, lr=learning_rate{written})"
    if idle:
        lines += [f"    if not {trained}:", "        return None  # a stage without parameters"]
    lines += layout.laid_out(made, 4) or []
    arguments = "".join(f", {name}" for name in optimizer.unknown)
    body = "\n".join(lines)
    steps = [*(["optimizer.clip_grad()"] if clipped else []), "optimizer.step()"]
    steps += ["optimizer.zero_grad()"]
    if idle:
        steps = ["if optimizer is not None:", *(f"    {step}" for step in steps)]
    updating = "\n".join(f"    {step}" for step in steps)
    return f'''
def make_optimizer(params, learning_rate{arguments}):
    """Return the optimizer; its states are cut as the parameters are."""
{body}


def update(params, optimizer):
    """Update the parameters, whose gradients autograd has brought into their states."""
{updating}
'''
