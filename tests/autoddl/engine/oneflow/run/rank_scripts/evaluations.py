"""Train, validate, train, on one process or under plans on two or four: `evaluations.py FOLDER`.

Writes the losses and what the evaluations return as JSON, for each way to split the training.
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

STEPS, EVERY, BATCH = 4, 2, 16
COUPLED, APART = "coupled", "apart"
# By number of ranks.
PLANS = {
    1: {COUPLED: {COUPLED: None}, APART: {APART: None}},
    2: {
        COUPLED: {"ZeRO": {"mesh": "2", "search": "ZeRO 2"}},
        APART: {
            "halves": {"mesh": "2", "duplex": True},
            "stages": {"mesh": "1", "pipeline": 2, "micro_batches": 2},
        },
    },
    4: {COUPLED: {"2x2": {"mesh": "2x2", "search": "Megatron"}}},
}


class Model(nn.Module):
    """A tied weight, and layers that are others in training; `apart` no op couples samples."""

    def __init__(self, apart):
        super().__init__()
        self.inner = nn.Linear(16, 32, bias=apart)  # before a BatchNorm its gradient is rounding
        self.norm = nn.LayerNorm(32) if apart else nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.0 if apart else 0.5)
        self.outer = nn.Linear(32, 16)
        self.mask = flow.tensor((np.arange(16) % 3 + 1).astype(np.float32))  # no buffer

    def forward(self, x):
        h = self.drop(nn.functional.gelu(self.norm(self.inner(x))))
        h = self.outer(h)[:, flow.tensor([*range(15, -1, -1)])] * self.mask
        return flow.matmul(h, self.inner.weight.transpose(0, 1))


def batch(number, rows=BATCH):
    rng = np.random.default_rng(number)
    return [flow.tensor(rng.normal(size=(rows, n)).astype(np.float32)) for n in (16, 32)]


def graphs(apart):
    model = Model(apart)
    seed_weights(model, 1)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.01)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x, y):
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

    class Evaluate(nn.Graph):
        """Names the model otherwise, and returns two things."""

        def __init__(self):
            super().__init__()
            self.net = model

        def build(self, x, y):
            out = self.net(x)
            return {"out": out, "loss": nn.functional.mse_loss(out, y)}

    return model, Train(), Evaluate()


def values(tensor):
    tensor = tensor.to_local() if tensor.is_global else tensor
    return tensor.numpy().tolist()


def trained(apart, options):
    flow.manual_seed(7)
    model, train, evaluate = graphs(apart)
    seen = {"losses": [], "evaluated": [], "module": []}
    step = None
    if options is not None:
        step = autoddl.optimize(train, *batch(0), budget=LITTLE, **options).apply(train)
    run = train if step is None else step
    for number in range(STEPS):
        if number % EVERY == 0:
            model.eval()
            whole = evaluate(*batch(100)) if step is None else step.evaluate(evaluate, *batch(100))
            seen["evaluated"].append({key: values(found) for key, found in whole.items()})
            short = batch(200, 6)
            part = model(short[0]) if step is None else step.evaluate(model, short[0])
            seen["module"].append(values(part))
            model.train()
        seen["losses"].append(values(run(*batch(number))))
    if step is not None:
        seen["eager"] = refusal(lambda: model(batch(0)[0]))
        seen["trains"] = refusal(lambda: step.evaluate(train, *batch(0)))
        seen["no graph"] = refusal(lambda: step.evaluate(3, *batch(0)))
        step.close()
        seen["closed"] = refusal(lambda: step(*batch(0)))
    return seen


folder, rank = Path(sys.argv[1]), flow.env.get_rank()
seen = {}
for kind, plans in PLANS[flow.env.get_world_size()].items():
    for name, options in plans.items():
        try:
            seen[name] = trained(kind == APART, options)
        except autoddl.AutoDDLError as error:
            seen[name] = str(error)
(folder / f"rank{rank}.json").write_text(json.dumps(seen))
