"""Four steps of models as their graphs say (one process), or under random plans with all and with half of
what is inside layers computed again.

Rank 0 writes to the given folder the losses of each, and what the engine changed.
"""

import json
import sys
from functools import partial
from pathlib import Path

import oneflow as flow

import autoddl
from autoddl.api import Plan
from autoddl.engine.oneflow.run.agree import from_rank_0
from autoddl.perfmodel import profile as profiles
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rewrites.recomputed_layers import in_layers, ops_again
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from experiments.proofs.execution_ranks import fresh

MODELS = {
    "bert": ({"dropout": 0.1, "layers": 2}, ("again", "half again")),
    "resnet50": ({"blocks": (1,), "batch": 16}, ("again",)),
}
STEPS = 4


def random_plan(program, seed):
    problem = build(program, Mesh.parse("2"), profiles.load(None))
    return make_plan(problem, problem.result("random", random_assignment(problem, seed)))


def train(folder):
    told = {}
    for model, (sizes, kinds) in MODELS.items():
        losses = {}
        for kind in ("alone",) if flow.env.get_world_size() == 1 else kinds:
            graph, inputs = fresh(model, **sizes)
            if kind == "alone":
                losses[kind] = [float(graph(*inputs).numpy()) for _ in range(STEPS)]
                continue
            program = autoddl.capture(graph, *inputs)
            some = in_layers(program)
            if kind == "half again":
                some = in_layers(program, ops_again(some)[1::2])
            step = Plan.of(from_rank_0(partial(random_plan, some, 1))).apply(graph)
            losses[kind] = [float(step(*inputs).numpy()) for _ in range(STEPS)]
            assert step.changed_signatures == [], step.changed_signatures
            step.close()
        told[model] = losses
    if flow.env.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps(told))


train(Path(sys.argv[1]))
