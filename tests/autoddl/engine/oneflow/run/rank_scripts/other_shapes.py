"""Train on batches of several sizes: `other_shapes.py FOLDER`; on one rank eagerly, without autoddl.

Rank 0 writes by plan the losses and the last weights.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from experiments.models.training import seed_weights
from tests.support.budgets import LITTLE
from tests.support.refusals import refusal

ROWS = (16, 16, 6, 16, 15, 6, 16)
PLANS = {
    2: {
        "ZeRO": (ROWS, {"mesh": "2", "search": "ZeRO 2"}),
        "five on 2": ((5, 5, 5), {"mesh": "2", "search": "Megatron"}),
    },
    4: {"2x2": ((16, 6, 16, 6), {"mesh": "2x2", "search": "SUMMA"})},
}
STAGES = {"mesh": "1", "pipeline": 2, "micro_batches": 2}


def build():
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8))
    seed_weights(model, 1)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
    schedule = flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, lr_sch=schedule)

        def build(self, x, y):
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

    return Train(), model, optimizer, schedule


def batch(number, rows=ROWS):
    rng = np.random.default_rng(number)
    return [flow.tensor(rng.normal(size=(rows[number], n)).astype(np.float32)) for n in (16, 8)]


def alone(rows):
    _, model, optimizer, schedule = build()
    losses = []
    for number in range(len(rows)):
        x, y = batch(number, rows)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(float(loss.numpy()))
    return losses, {name: tensor.numpy().tolist() for name, tensor in model.state_dict().items()}


def planned(rows, options):
    graph, *_ = build()
    batches = [batch(number, rows) for number in range(len(rows))]
    step = autoddl.optimize(graph, *batches[0], budget=LITTLE, **options).apply(
        graph, other_shapes=True
    )
    losses = [float(step(*each).to_local().numpy()) for each in batches]
    state = step.state_dict()["model"]
    step.close()
    return losses, {name: tensor.numpy().tolist() for name, tensor in state.items()}


ranks = flow.env.get_world_size()
if ranks == 1:
    seen = {name: alone(rows) for plans in PLANS.values() for name, (rows, _) in plans.items()}
else:
    seen = {name: planned(*each) for name, each in PLANS[ranks].items()}
if ranks == 2:
    graph, *_ = build()
    plan = autoddl.optimize(graph, *batch(0), budget=LITTLE, **STAGES)
    seen["stages"] = refusal(lambda: plan.apply(graph, other_shapes=True))
    graph, *_ = build()
    step = autoddl.optimize(graph, *batch(0), mesh="2", budget=LITTLE).apply(
        graph, other_shapes=True
    )
    seen["first"] = refusal(lambda: step(*batch(2)))
if flow.env.get_rank() == 0:
    (Path(sys.argv[1]) / "seen.json").write_text(json.dumps(seen))
