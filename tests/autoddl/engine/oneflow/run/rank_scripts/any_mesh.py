"""On all ranks: plan without a mesh, take one step of the plan, write what was seen."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import oneflow as flow

import autoddl
from autoddl.engine.oneflow.run import agree
from autoddl.engine.oneflow.run.agree import check_kinds
from experiments.models import mlp
from tests.support.budgets import LITTLE

flow.manual_seed(1)
graph, inputs = mlp.build(batch=8)
alone = graph.loss(graph.model.to(flow.nn.Module)(inputs[0]), inputs[1])
plan = autoddl.optimize(graph, *inputs, budget=LITTLE)
loss = plan.apply(graph)(*inputs)
seen = {
    "cluster": agree.cluster(),
    "mesh": plan.mesh.describe(),
    "meshes": [tried.mesh for tried in plan.search.outcomes],
    "loss": float(loss.numpy()),
    "alone": float(alone.numpy()),
}
rank = flow.env.get_rank()
kinds = {0: "fast", 1: "fast", 2: "fast", 3: "slow"}
parts = (replace(plan.parts[0], kinds=("fast",)),)
for name, told in {"told": kinds[rank], "not told": "", "as planned": "fast"}.items():
    os.environ["AUTODDL_KIND"] = told
    seen[name] = "no error"
    try:
        check_kinds(replace(plan, parts=parts))
    except autoddl.AutoDDLError as error:
        seen[name] = str(error)
del os.environ["AUTODDL_KIND"]
(Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(seen))
