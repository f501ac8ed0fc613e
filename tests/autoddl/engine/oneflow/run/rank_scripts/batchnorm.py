"""Five steps of a ResNet as its graph says (one process), or with statistics in parts (more).

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
from autoddl.sbp.rewrites.sync_batchnorm import synchronised
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from experiments.proofs.execution_ranks import fresh, variables

STEPS, MESHES, SEED = 5, {2: "2", 4: "2x2"}, 2


def random_plan(program, mesh):
    problem = build(synchronised(program), Mesh.parse(mesh), profiles.load(None))
    return make_plan(problem, problem.result("random", random_assignment(problem, SEED)))


def train(folder):
    graph, inputs = fresh("resnet50", blocks=(1,), batch=16)
    run, ranks = graph, flow.env.get_world_size()
    told = {}
    if ranks > 1:
        program = autoddl.capture(graph, *inputs)
        plan = Plan.of(from_rank_0(partial(random_plan, program, MESHES[ranks])))
        cut = [s["x_0"].cutting(0) for s in plan.signatures.values() if "moving_mean_0" in s]
        told["cut"] = sum(map(bool, cut))
        run = plan.apply(graph)
    losses = [float(run(*inputs).numpy()) for _ in range(STEPS)]
    if ranks > 1:
        told["changed"] = run.changed_signatures
    weights = variables(graph)
    if flow.env.get_rank() == 0:
        np.savez(folder / "trained.npz", losses=np.array(losses), **weights)
        (folder / "told.json").write_text(json.dumps(told))


train(Path(sys.argv[1]))
