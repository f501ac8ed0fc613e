"""Five steps of a BERT with experts as its graph says (one process), or in halves of the batch (more).

Rank 0 writes to the given folder what it saw: losses, weights and what the engine changed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

import autoddl
from experiments.proofs.execution_ranks import fresh, variables
from tests.support.budgets import LITTLE

STEPS = 5


def train(folder):
    graph, inputs = fresh("bert_moe", kind="sgmoe")
    run, changed, ranks = graph, [], flow.env.get_world_size()
    if ranks > 1:
        options = {"mesh": str(ranks), "duplex": True, "pin": {"input.*": "S0"}}
        run = autoddl.optimize(graph, *inputs, budget=LITTLE, **options).apply(graph)
    losses = [float(run(*inputs).numpy()) for _ in range(STEPS)]
    if ranks > 1:
        changed = run.changed_signatures
    weights = variables(graph)
    if flow.env.get_rank() == 0:
        np.savez(folder / "trained.npz", losses=np.array(losses), **weights)
        (folder / "changed.json").write_text(json.dumps(changed))


train(Path(sys.argv[1]))
