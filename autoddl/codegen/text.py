"""The parts of a script that are (nearly) the same for every plan, as text."""

from __future__ import annotations

from autoddl.codegen.facts import Optimizer

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
