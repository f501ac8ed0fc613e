"""On all ranks: plan without a mesh, take one step of the plan, write what was seen."""

import json
import sys
from pathlib import Path

import oneflow as flow

import autoddl
from autoddl.engine.oneflow.run import agree
from experiments.models import gpt

graph, inputs = gpt.build(**{**gpt.SIZES["toy"], "layers": 1}, optimizer="sgd")
plan = autoddl.optimize(graph, *inputs, budget=4.0)
loss = plan.apply(graph)(*inputs)
seen = {
    "cluster": agree.cluster(),
    "mesh": plan.mesh.describe(),
    "meshes": [tried.mesh for tried in plan.search.outcomes],
    "loss": float(loss.numpy()),
}
rank = flow.env.get_rank()
(Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(seen))
