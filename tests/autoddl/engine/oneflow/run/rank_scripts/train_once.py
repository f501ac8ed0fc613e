"""A user's script as in the README: one step of a planned MLP, on any number of ranks."""

import json
import sys
from pathlib import Path

import oneflow as flow

import autoddl
from experiments.models import mlp
from experiments.models.training import seed_weights
from tests.support.budgets import LITTLE

graph, (x, y) = mlp.build(batch=8)
seed_weights(graph.model.to(flow.nn.Module), 1)
plan = autoddl.optimize(graph, x, y, budget=LITTLE)  # the mesh is searched
step = plan.apply(graph)
loss = float(step(x, y).numpy())
if flow.env.get_rank() == 0:
    seen = {"mesh": str(plan.mesh), "loss": loss}
    (Path(sys.argv[1]) / "seen.json").write_text(json.dumps(seen))
