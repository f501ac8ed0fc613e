"""Ten steps of a model as its graph says (one process), or with BatchNorm and dropout in parts (more).

Rank 0 writes to the given folder losses, weights and running statistics, and what the engine changed.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import oneflow as flow

import autoddl
from autoddl.api import Plan
from autoddl.engine.oneflow.run.agree import from_rank_0
from autoddl.perfmodel import profile as profiles
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import synchronised
from autoddl.sbp.rewrites.in_parts.whole_masks import with_whole_masks
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from experiments.proofs.execution_ranks import fresh, variables

STEPS, MESHES, SEED = 10, {2: "2", 4: "2x2"}, 2
MODELS = {
    "resnet50": {"blocks": (1,), "batch": 16}, "bert": {"dropout": 0.1},
    "vit": {"layers": 2, "drop_path": 0.3},
}  # fmt: skip
# what is cut, by type of op: of stochastic depth what was drawn
ALONE = {"normalization": "x_0", "dropout_grad": "dy_0", "floor": "x_0"}


def random_plan(program, mesh):
    program = with_whole_masks(synchronised(program), alike=True)
    problem = build(program, Mesh.parse(mesh), profiles.load(None))
    return make_plan(problem, problem.result("random", random_assignment(problem, SEED)))


def train(folder, model):
    graph, inputs = fresh(model, **MODELS[model])
    run, ranks = graph, flow.env.get_world_size()
    told = {}
    if ranks > 1:
        program = autoddl.capture(graph, *inputs)
        plan = Plan.of(from_rank_0(partial(random_plan, program, MESHES[ranks])))
        told["cut"] = sum(
            bool(plan.signatures[op.name][ALONE[op.type]].cutting(0))
            for op in plan.program.ops
            if op.type in ALONE and op.phase == "forward"
        )
        run = plan.apply(graph)
    losses = [float(run(*inputs).numpy()) for _ in range(STEPS)]
    if ranks > 1:
        told["changed"] = run.changed_signatures
    weights = variables(graph)
    if flow.env.get_rank() == 0:
        np.savez(folder / "trained.npz", losses=np.array(losses), **weights)
        (folder / "told.json").write_text(json.dumps(told))


train(Path(sys.argv[1]), sys.argv[2])
