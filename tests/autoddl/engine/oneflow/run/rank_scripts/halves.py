"""Ten steps of models as their graphs say (one process), or in two halves of the batch (more).

Arguments: a folder, and pairs of a model and its mesh, as JSON. Writes what one rank saw: losses, weights
and what the engine changed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

import autoddl
from experiments.proofs.execution_ranks import fresh, variables

MODELS = {
    "gpt": ("gpt", {}), "vgg13": ("vgg13", {}),
    "BERT-SGMoE": ("bert_moe", {"kind": "sgmoe"}), "BERT-Switch": ("bert_moe", {"kind": "switch"}),
}  # fmt: skip
STEPS = 10


def train(folder, name, mesh):
    model, sizes = MODELS[name]
    graph, inputs = fresh(model, **sizes)
    run, changed = graph, []
    if mesh is not None:
        states = ",".join(["S0"] * len(mesh.split("x")))
        plan = autoddl.optimize(
            graph, *inputs, mesh=mesh, duplex=True, pin={"input.*": states}, budget=0.5
        )
        run = plan.apply(graph)
    losses = [float(run(*inputs).numpy()) for _ in range(STEPS)]
    if mesh is not None:
        changed = run.changed_signatures
    weights = variables(graph)
    if flow.env.get_rank() == 0:
        np.savez(folder / f"{name}-{mesh}.npz", losses=np.array(losses), **weights)
        (folder / f"{name}-{mesh}.json").write_text(json.dumps(changed))


for _name, _mesh in json.loads(sys.argv[2]):
    train(Path(sys.argv[1]), _name, _mesh)
