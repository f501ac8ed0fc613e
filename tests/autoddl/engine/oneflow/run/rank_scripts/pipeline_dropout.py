"""Dropout and stochastic depth in two stages, or on one rank with the engine's own accumulation.

On four ranks each stage has two, for halves of each micro-batch, and draws the masks whole. The engine
draws the masks of all micro-batches one after the other, from the seed of each op. Rank 0 writes losses.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from autoddl.engine.oneflow.run import agree
from autoddl.sbp.rewrites.in_parts.whole_masks import with_whole_masks
from autoddl.sbp.rewrites.micro_batch import micro_batch
from experiments.models.training import TrainGraph, mean_squared_error, seed_weights
from experiments.models.transformer import DropPath
from tests.support.budgets import LITTLE
from tests.support.unlike_parts import parted

MICRO_BATCHES = 4

flow.manual_seed(7)
model = nn.Sequential(
    nn.Linear(8, 16),
    nn.Dropout(0.5),
    nn.ReLU(),
    nn.Linear(16, 16),
    nn.Dropout(0.5),
    nn.Linear(16, 8),
    DropPath(0.3),
)
seed_weights(model, 1, scale=0.3)
graph = TrainGraph(model, mean_squared_error, "plain_sgd")
values = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
x, y = (flow.tensor(value) for value in values)
stages = {}
if flow.env.get_world_size() == 1:
    graph.config.set_gradient_accumulation_steps(MICRO_BATCHES)
    losses = [float(graph(x, y).numpy().mean()) for _ in range(4)]
elif flow.env.get_world_size() == 4:
    micro = micro_batch(autoddl.capture(graph, x, y), MICRO_BATCHES)
    program = with_whole_masks(micro, alike=True)
    made = agree.from_rank_0(lambda: parted(program, ["2", "2"], MICRO_BATCHES, bounds=[6]))
    plan = autoddl.Plan.of(made)
    stages = {name: stage for name, stage in plan.stage_of.items() if "drawn-" in name}
    step = plan.apply(graph)
    losses = [float(step(x, y).to_local().numpy()) for _ in range(4)]
else:
    plan = autoddl.optimize(
        graph, x, y, budget=LITTLE, mesh="1", pipeline=2, micro_batches=MICRO_BATCHES
    )
    stages = {n: stage for n, stage in plan.stage_of.items() if n.endswith(("-2", "-6"))}
    step = plan.apply(graph)
    losses = [float(step(x, y).to_local().numpy()) for _ in range(4)]
if flow.env.get_rank() == 0:
    (Path(sys.argv[1]) / "seen.json").write_text(json.dumps({"losses": losses, "stages": stages}))
