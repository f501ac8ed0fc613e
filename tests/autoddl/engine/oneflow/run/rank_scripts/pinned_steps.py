"""On four ranks: train under pins of every kind. Writes to seen.json what rank 0 saw, by kind."""

import json
import sys
from pathlib import Path

import oneflow as flow
from oneflow import nn

import autoddl
from experiments.models import mlp
from experiments.models.training import OPTIMIZERS, seed_weights
from tests.support.budgets import LITTLE

STEPS = 10
WHOLE, STAGES = {"mesh": "2x2"}, {"mesh": "2", "pipeline": 2, "micro_batches": 2}
PINS = {
    "module": {"model.0": "S1"},
    "op": {"model.1-gelu-2": "!B|S0"},
    "gradient": {"grad model.2.weight": "P"},
    "several": {"model.2": "S0,S1|S1,S0", "input.*": "S0,B"},
    "level": {"model.0": "gpu: S0", "model.2.weight": "!gpu: B"},
    "stage": {"model.1": "stage 0", "model.2.weight": "stage 1", "model.4": "S0"},
}


def fresh():
    graph, inputs = mlp.build(widths=(8, 16, 16, 8))
    seed_weights(graph.model.to(nn.Module), 1)
    return graph, inputs


def reference():
    graph, (x, y) = fresh()
    model, losses = graph.model.to(nn.Module), []
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for _ in range(STEPS):
        loss = graph.loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.numpy()))
    return losses


def trained(pin, **options):
    graph, (x, y) = fresh()
    plan = autoddl.optimize(graph, x, y, budget=LITTLE, pin=pin, **options)
    step = plan.apply(graph)
    return {
        "losses": [float(step(x, y).numpy()) for _ in range(STEPS)],
        "states": {name: str(state) for name, state in plan.layout.made.items()},
        "stages": dict(plan.stage_of),
        "changed": step.changed_signatures,
    }


seen = {"reference": reference()}
for kind, pin in PINS.items():
    seen[kind] = trained(pin, **(STAGES if kind == "stage" else WHOLE))
if flow.env.get_rank() == 0:
    (Path(sys.argv[1]) / "seen.json").write_text(json.dumps(seen))
