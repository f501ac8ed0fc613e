"""Train a model that was built without memory: `abstract_models.py FOLDER PLANS`.

PLANS is JSON, the options of plans by name. Rank 0 writes the first values of parameters, the losses,
and the next one without and with a checkpoint in between.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from tests.support.budgets import LITTLE
from tests.support.refusals import refusal

STEPS = 4


class Model(nn.Module):
    """What is initialised in all ways: by layers, by the user again, by factories, by a constant."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(16, 32), nn.LayerNorm(32)
        self.table = nn.Parameter(flow.randn(4, 32) * 0.5)
        self.scale = nn.Parameter(flow.ones(32))
        self.gate = nn.Parameter(flow.empty(32))
        self.gate.data.uniform_(0.5, 1.5)
        self.last = nn.Linear(32, 8)
        nn.init.normal_(self.last.weight, 0.0, 0.02)
        nn.init.zeros_(self.last.bias)
        self.register_buffer("mask", flow.tril(flow.ones(4, 4)))

    def forward(self, x):
        x = flow.matmul(self.mask, self.norm(self.first(x)) + self.table)
        return self.last(flow.tanh(x) * self.scale * self.gate)


def build(kind=Model):
    model = kind()
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x, y):
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

    return Train(), model


class Summed(Model):
    """What keeps something that it has computed from a parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("sum", self.last.weight.detach().sum(dim=0))


def batch(number):
    rng = np.random.default_rng(number)
    return [flow.tensor(rng.normal(size=(16, 4, n)).astype(np.float32)) for n in (16, 8)]


def whole(tensor):
    everywhere = flow.placement("cpu", list(range(flow.env.get_world_size())))
    found = tensor.to_global(placement=everywhere, sbp=flow.sbp.broadcast)
    return found.to_local().numpy().copy()


def refused():
    with autoddl.abstract_parameters():
        graph, _ = build(Summed)
    plan = autoddl.optimize(graph, *batch(0), mesh="2", budget=LITTLE)
    return refusal(lambda: plan.apply(graph))


folder, plans = Path(sys.argv[1]), json.loads(sys.argv[2])
(folder / f"refused{flow.env.get_rank()}.txt").write_text(refused())
for name, options in plans.items():
    with autoddl.abstract_parameters(seed=5):
        graph, model = build()
    step = autoddl.optimize(graph, *batch(0), budget=LITTLE, **options).apply(graph)
    first = {key: whole(value) for key, value in model.state_dict().items()}
    losses = [whole(step(*batch(number))).item() for number in range(STEPS)]
    step.save(folder / name)
    with autoddl.abstract_parameters(seed=6):
        again, _ = build()
    resumed = autoddl.resume(folder / name, again, *batch(0))
    both = [whole(each(*batch(STEPS))).item() for each in (step, resumed)]
    step.close()
    resumed.close()
    if flow.env.get_rank() == 0:
        np.savez(folder / f"{name}.npz", losses=losses, both=both, **first)
