"""Ten steps of a model as its graph says (one process), or in two halves of the batch (more).

Arguments: a folder, the model, and its mesh if there is one. Rank 0 writes what it saw: losses, weights
and what the engine changed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

import autoddl
from experiments.proofs.execution_ranks import fresh, variables
from tests.support.budgets import LITTLE

MODELS = {
    "gpt": ("gpt", {}), "vgg13": ("vgg13", {}),
    "BERT-SGMoE": ("bert_moe", {"kind": "sgmoe"}), "BERT-Switch": ("bert_moe", {"kind": "switch"}),
}  # fmt: skip
STEPS = 10


def train(folder, name, mesh=None):
    model, sizes = MODELS[name]
    graph, inputs = fresh(model, **sizes)
    run, changed = graph, []
    if mesh is not None:
        states = ",".join(["S0"] * len(mesh.split("x")))
        plan = autoddl.optimize(
            graph, *inputs, mesh=mesh, duplex=True, pin={"input.*": states}, budget=LITTLE
        )
        run = plan.apply(graph)
    losses = [float(run(*inputs).numpy()) for _ in range(STEPS)]
    if mesh is not None:
        changed = run.changed_signatures
    weights = variables(graph)
    if flow.env.get_rank() == 0:
        np.savez(folder / "trained.npz", losses=np.array(losses), **weights)
        (folder / "changed.json").write_text(json.dumps(changed))


train(Path(sys.argv[1]), *sys.argv[2:])
