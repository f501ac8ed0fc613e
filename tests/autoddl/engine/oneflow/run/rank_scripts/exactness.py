"""Dropout and local BatchNorm, on one process or two; writes its losses as JSON.

Every sample of the batch is repeated on each of two devices, so that the statistics of a device's part
are those of the whole batch.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from experiments.models.training import TrainGraph, mean_squared_error, seed_weights

RNG = np.random.default_rng(0)


def drop():
    flow.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)), (8, 8), (8, 4)


def norm():
    """Return a model in which to gather the batch for the BatchNorm would cost more than to cut it."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    return model, (8, 3, 32, 32), (8, 64, 32, 32)


def repeated(shape):
    values = RNG.normal(size=(4, *shape[1:]))
    return flow.tensor(np.tile(values, (2, *[1] * (len(shape) - 1))).astype(np.float32))


def train(make, **options):
    model, x_shape, y_shape = make()
    seed_weights(model, 1)
    graph = TrainGraph(model, mean_squared_error, "sgd")
    x, y = repeated(x_shape), repeated(y_shape)
    run, states = graph, {}
    if flow.env.get_world_size() > 1:
        plan = autoddl.optimize(graph, x, y, search="data parallel", **options)
        run = plan.apply(graph)
        states = {
            name: {o: str(s) for o, s in sig.items()} for name, sig in plan.signatures.items()
        }
    losses = [float(run(x, y).numpy()) for _ in range(4)]
    return {"losses": losses, "states": states}


pin = {"input.*": "S0"}
seen = {
    "dropout": train(drop, mesh="2", pin=pin),
    "norm": train(norm, mesh="2", pin=pin, allow_local_batchnorm=True),
}
(Path(sys.argv[1]) / f"rank{flow.env.get_rank()}.json").write_text(json.dumps(seen))
