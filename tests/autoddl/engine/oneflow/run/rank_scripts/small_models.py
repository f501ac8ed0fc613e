"""Tiny models of ops that vision models use and of 0-d tensors: `small_models.py FOLDER`.

One process trains them as their graphs say, more under random plans, which cut more than the default.
Writes what the steps returned to <model>.json, by plan, and the states of the ops by type.
"""

import json
import sys
from pathlib import Path

import oneflow as flow
from oneflow import nn

import autoddl
from autoddl.api import Plan
from autoddl.engine.oneflow.run.agree import from_rank_0
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from experiments.lib import oneflow_problems as builder
from experiments.models.training import OPTIMIZERS, seed_weights
from experiments.proofs.execution_ranks import random_plan
from tests.autoddl.engine.oneflow.run.training_cases import leaves

F = nn.functional
STEPS = 3
# Random plans that cut, between them, all that may be cut (test_small_models.py).
SEEDS = {"scalars": (0,), "vision": (1, 5)}
WAYS = {
    "reshape": lambda x: x.reshape(-1),
    "reshape and back": lambda x: x.reshape(1).reshape(()),
    "cat": lambda x: flow.cat([x.view(1), 2 * x.reshape(1)]),
    "stack": lambda x: flow.stack([x, 2 * x]),
    "unsqueeze and squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "flatten": lambda x: x.flatten(),
    "expand": lambda x: x.expand(4),
    "expand a reshaped one": lambda x: x.reshape(1, 1).expand(2, 4),
    "None": lambda x: x[None],
    "index": lambda x: x.reshape(1)[0],
    "repeat": lambda x: x.repeat(3),
    "tile": lambda x: x.tile((2, 2)),
}


class Scalars(nn.Module):
    """Every way has a loss of its own, so that each may be a partial sum."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        h = self.inner(x).tanh()
        return [way((h * h).mean()) for way in WAYS.values()]


class Vision(nn.Module):
    """Shifted windows, patches, parts that are replaced, norms, and random depth."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv(x * (x.numel() ** 0.5 / flow.linalg.norm(x)))
        x = x + flow.roll(x, (-2, 3), (2, 3)) * flow.bernoulli(flow.full((8, 1, 1, 1), 0.8))
        x = x * (1 + flow.rand(8, 1, 1, 1)) + 0.1 * flow.randn(8, 8, 1, 1)
        patches = F.unfold(x, 4, stride=4) * 2
        x = x + F.fold(patches, (8, 8), 4, stride=4)
        y = x * 1
        y[:, 2:6] = x[:, :4] * x[:, 4:]
        rows = y.unfold(3, 4, 2).sum(4)
        return [self.head(rows.mean((2, 3))).sigmoid().mean()]


class Train(nn.Graph):
    """Train on the sum of all that a model returns."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(OPTIMIZERS["sgd"](model.parameters()))

    def build(self, x):
        found = self.model(x)
        loss = sum(part.sum() for part in found)
        loss.backward()
        return [loss, *found]


def fresh(make, shape):
    flow.manual_seed(7)
    model = make()
    seed_weights(model, 1)
    return Train(model), flow.linspace(-1, 2, flow.Size(shape).numel()).reshape(shape)


def steps(run, x):
    return [leaves(run(x)) for _ in range(STEPS)]


def under_plans(make, shape, seeds):
    graph, x = fresh(make, shape)
    program = autoddl.capture(graph, x)
    problem = builder.build(program, Mesh.parse("2"), profiles.load(None))
    plans = {}
    for seed in seeds:
        made = from_rank_0(lambda seed=seed: random_plan(problem, seed, False))
        plans[f"random {seed}"] = Plan.of(made)
    found = {}
    for name, plan in plans.items():
        states = {}
        for op in program.ops:
            states.setdefault(op.type, []).append(
                " ".join(str(plan.signatures[op.name][operand]) for operand, _ in op.operands)
            )
        graph, x = fresh(make, shape)
        try:
            run = plan.apply(graph)
            found[name] = {"steps": steps(run, x), "states": states}
            run.close()
        except autoddl.AutoDDLError as error:
            found[name] = {"steps": str(error), "states": states}
    return found


for _name, _make, _shape in (("scalars", Scalars, (8, 8)), ("vision", Vision, (8, 4, 8, 8))):
    if flow.env.get_world_size() == 1:
        _found = {"one": {"steps": steps(*fresh(_make, _shape))}}
    else:
        _found = under_plans(_make, _shape, SEEDS[_name])
    if flow.env.get_rank() == 0:
        (Path(sys.argv[1]) / f"{_name}.json").write_text(json.dumps(_found))
