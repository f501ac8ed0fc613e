"""Train, save after five steps, go on in another process: `checkpoints.py FOLDER MODE CASES [OPTIONS]`.

Modes: "whole" trains ten steps on one device without autoddl; "save" trains ten under a plan and saves
after five; "alone" does the last five on one device from merged files; "elastic" is killed once; any
other resumes the checkpoints with the options of a plan. Each writes its losses and weights to
FOLDER/<mode>-<case>.npz.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from autoddl import store
from autoddl.checkpoint import sharded_files
from tests.support.budgets import LITTLE

folder, mode, asked = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
options = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
STEPS, SAVED = 10, 5


class Tied(nn.Module):
    """Two linear layers with one weight, a frozen one, a norm, and a buffer without dims."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 8)
        self.mask = flow.tensor((np.arange(16) % 3 + 1).astype(np.float32))  # no buffer
        self.frozen.weight.requires_grad = False
        self.register_buffer("factor", flow.tensor(1.5))

    def forward(self, x):
        h = nn.functional.gelu(self.norm(self.fc(x))) * self.mask * self.factor
        return self.head(self.frozen(h) + flow.matmul(h, self.fc.weight))


CASES = {
    "scaled": (
        lambda p: flow.optim.Adam(p, lr=0.01),
        lambda o: flow.optim.lr_scheduler.CosineAnnealingLR(o, STEPS),
    ),
    "momentum": (lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9), None),
}


def graph_of(case):
    rng, model = np.random.default_rng(3), Tied()
    for tensor in model.parameters():
        value = rng.normal(0, 0.1, tuple(tensor.shape)).astype(np.float32)
        tensor.data.copy_(flow.tensor(value))
    make, schedule = CASES[case]
    optimizer = make([p for p in model.parameters() if p.requires_grad])

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            if schedule is None:
                self.add_optimizer(optimizer)
            else:
                self.add_optimizer(optimizer, lr_sch=schedule(optimizer))
            if case == "scaled":
                self.config.enable_amp(True)
                self.set_grad_scaler(flow.amp.GradScaler(init_scale=64.0, growth_interval=3))

        def build(self, x, y):
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

    # OneFlow counts the graphs of a name, and states of scalers have it: "alone" reads those of "save".
    Train.__name__ = f"{'Whole' if mode == 'whole' else ''}{case.capitalize()}"
    return Train()


def batch(step):
    rng = np.random.default_rng(step)
    return [flow.tensor(rng.normal(size=(16, n)).astype(np.float32)) for n in (16, 8)]


def loss_of(tensor):
    return float(tensor.to_local().numpy() if tensor.is_global else tensor.numpy())


def write(case, losses, state):
    if flow.env.get_rank() == 0:
        values = {name: value.numpy() for name, value in state["model"].items()}
        own = {name: value.numpy() for name, value in state.items() if name != "model"}
        own = {name: value for name, value in own.items() if "FreeEagerTensor" not in name}
        values |= {re.sub(r"-(Whole)?Scaled_\d+-", "-", name): value for name, value in own.items()}
        np.savez(folder / f"{mode}-{case}.npz", losses=losses, **values)


def elastic():
    """Save after every step; the first time a rank is killed in the sixth step."""
    graph, case = graph_of("scaled"), folder / "elastic"
    if (case / "index.json").exists():
        step = autoddl.resume(case, graph, *batch(0))
    else:
        step = autoddl.optimize(graph, *batch(0), mesh="2", search="Megatron").apply(graph)
    done = sharded_files.read_index(case).facts.steps if (case / "index.json").exists() else 0
    for number in range(done, STEPS):
        loss = loss_of(step(*batch(number)))
        if flow.env.get_rank() == 0:
            store.append(folder / "elastic.jsonl", [number, loss, flow.env.get_world_size()])
        if number == SAVED and os.environ["AUTODDL_RESTARTS"] == "0" and flow.env.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step.save(case)


if mode == "elastic":
    elastic()
for case in asked if mode != "elastic" else ():
    graph = graph_of(case)
    if mode in ("whole", "alone"):
        if mode == "alone":
            graph.load_state_dict(flow.load(str(folder / f"{case}.of")))
        first = 0 if mode == "whole" else SAVED
        losses = [loss_of(graph(*batch(step))) for step in range(first, STEPS)]
        write(case, losses, graph.state_dict())
        continue
    if mode == "save":
        step = autoddl.optimize(graph, *batch(0), mesh="2x2", search="Megatron").apply(graph)
        losses = []
        for number in range(STEPS):
            losses.append(loss_of(step(*batch(number))))
            if number + 1 in (SAVED - 2, SAVED):  # the second replaces the first
                step.save(folder / case)
    elif mode == "taken":  # from a state dict of one device, after a step of its own
        step = autoddl.optimize(graph, *batch(0), budget=LITTLE, **options).apply(graph)
        step(*batch(0))
        step.load_state_dict(flow.load(str(folder / f"{case}.of")))
        losses = [loss_of(step(*batch(number))) for number in range(SAVED, STEPS)]
    else:
        step = autoddl.resume(folder / case, graph, *batch(0), **options)
        losses = [loss_of(step(*batch(number))) for number in range(SAVED, STEPS)]
    write(case, losses, step.state_dict())
    step.close()
