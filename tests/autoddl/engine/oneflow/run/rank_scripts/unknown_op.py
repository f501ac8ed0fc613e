"""On two ranks: activations without a rule are split as the engine says, and train the same."""

import json
import sys
import warnings
from pathlib import Path

import oneflow as flow
from oneflow import nn

import autoddl
from autoddl.sbp.rules.registry import find
from experiments.models.training import OPTIMIZERS, TrainGraph, mean_squared_error, seed_weights


def fresh():
    model = nn.Sequential(nn.Linear(8, 16), nn.Mish(), nn.Linear(16, 4), nn.CELU())
    seed_weights(model, 1)
    return TrainGraph(model, mean_squared_error, "sgd")


x, y = flow.ones(4, 8), flow.zeros(4, 4)
plain = fresh()
model = plain.model.to(nn.Module)
optimizer = OPTIMIZERS["sgd"](model.parameters())
reference = []
for _ in range(3):
    loss = mean_squared_error(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    reference.append(float(loss.numpy()))
graph = fresh()
program = autoddl.capture(graph, x, y)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    plan = autoddl.optimize(graph, x, y, mesh="2", search="data parallel")
messages = [str(w.message) for w in caught if "without a rule" in str(w.message)]
try:
    autoddl.optimize(fresh(), x, y, mesh="2", strict=True)
    strict = "no error"
except autoddl.AutoDDLError as error:
    strict = str(error)
step = plan.apply(graph)
losses = [float(step(x, y).numpy()) for _ in range(3)]
if flow.env.get_rank() == 0:
    states = {
        op.type: sorted({str(state) for state in plan.signatures[op.name].values()})
        for op in program.ops
        if find(op.type) is None
    }
    seen = {"warnings": messages, "strict": strict, "losses": losses, "reference": reference}
    seen |= {"states": states, "changed": step.changed_signatures}
    (Path(sys.argv[1]) / "seen.json").write_text(json.dumps(seen))
