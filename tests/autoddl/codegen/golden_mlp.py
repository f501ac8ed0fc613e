"""Train on 4 devices, mesh [gpu 2][gpu 2]: a plan of AutoDDL in OneFlow.

Predicted: 12.75 ms a step (± 14%) and 30.0 KiB per device, profile cpu-loopback, graph
c60b1e228088d87f.

    python -m oneflow.distributed.launch --nproc_per_node 4 \
        THIS_FILE --weights model.of

(or python -m autoddl run --nproc-per-node 4 …) where model.of is the single-device model, saved
with flow.save(model.state_dict(), "model.of"). Checkpoints are such state dicts, too.

States name one SBP for each axis of the mesh: S(d) cuts dim d, B is the whole tensor, P a
summand of it. Where a state changes, the comment says from what to what, for whom, by which
collective, over which axis, and how many bytes a device has of it. Backward follows by autograd;
grad_sbp is the state in which the gradient comes back.
"""

import argparse
import itertools
import logging

import numpy as np
import oneflow as flow
from oneflow.nn import functional as F

B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split
DEVICE = "cpu"
RANKS = [[0, 1], [2, 3]]  # mesh [gpu 2][gpu 2]
PLACEMENT = flow.placement(DEVICE, RANKS)
WHOLE = [B, B]  # every device has the whole tensor

# Parameters by their names in the model: state, # shape.
PARAMETERS = {
    "fc1.weight": [S(1), S(0)],  # (32, 16)
    "fc1.bias": [B, S(0)],  # (32,)
    "fc2.weight": [S(1), S(0)],  # (8, 32)
    "fc2.bias": [B, S(0)],  # (8,)
}

# What is not trained: buffers and frozen parameters.
BUFFERS = {}

# Inputs: shape, dtype, state, and what whole numbers are below.
INPUTS = {
    "x": ((8, 16), "float32", [S(0), S(1)], None),
    "target": ((8, 8), "float32", [S(0), S(1)], None),
}


def as_global(array, sbp):
    """Return an array that every rank has as a global tensor in a state."""
    tensor = flow.tensor(array, device=DEVICE)
    return tensor.to_global(placement=PLACEMENT, sbp=WHOLE).to_global(sbp=sbp)


def as_whole(tensor):
    """Return the whole of a global tensor as an array, on every rank."""
    return tensor.to_global(sbp=WHOLE).to_local().numpy().copy()


def forward(params, x):
    """Run the model: x (8, 16) in (S0, S1) → (8, 8) in (S0, S1)."""
    # (S0, S1) → (S0, B) for fc1: all-gather over axis 1, 256 B
    x = x.to_global(sbp=[S(0), B], grad_sbp=[S(0), S(1)])
    # (S1, S0) → (B, S0) for fc1: all-gather over axis 0, 1.0 KiB
    fc1_weight = params["fc1.weight"].to_global(sbp=[B, S(0)], grad_sbp=[S(1), S(0)])
    fc1 = F.linear(x, fc1_weight, params["fc1.bias"])
    act1 = F.gelu(fc1)
    # (S0, S1) → (S0, B) for fc2: all-gather over axis 1, 512 B
    act1 = act1.to_global(sbp=[S(0), B], grad_sbp=[S(0), S(1)])
    # (S1, S0) → (B, S0) for fc2: all-gather over axis 0, 512 B
    fc2_weight = params["fc2.weight"].to_global(sbp=[B, S(0)], grad_sbp=[S(1), S(0)])
    return F.linear(act1, fc2_weight, params["fc2.bias"])


def loss_of(params, x, target):
    """Return the loss of one batch."""
    x = forward(params, x)
    x = (x - target).square().mean()
    # (P, P) → (B, P) for the result: all-reduce over axis 0, 4 B
    x = x.to_global(sbp=[B, P], grad_sbp=[B, B])
    # (B, P) → (B, B) for the result: all-reduce over axis 1, 4 B
    x = x.to_global(sbp=[B, B], grad_sbp=[B, B])
    return x


def make_optimizer(params, learning_rate):
    """Return the optimizer; its states are cut as the parameters are."""
    trained = [params[name] for name in PARAMETERS]
    return flow.optim.SGD(trained, lr=learning_rate, momentum=0.9)


def update(params, optimizer):
    """Update the parameters, whose gradients autograd has brought into their states."""
    optimizer.step()
    optimizer.zero_grad()


def train_step(params, optimizer, *inputs):
    """Run forward, backward and update on one batch of global tensors; return the loss."""
    loss = loss_of(params, *inputs)
    loss.backward()
    update(params, optimizer)
    return loss


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
    parser.add_argument("--learning-rate", type=float, default=0.1)
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
