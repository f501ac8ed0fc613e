"""Run training scripts for ten steps each: `training_scripts.py FOLDER CASES`.

CASES is JSON: pairs of a case and the options of its plan, null for one process without autoddl. Writes
what each step returned, or the line of the error, as rank<N>.json.
"""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from tests.autoddl.engine.oneflow.run.training_cases import CASES, graph_of, leaves

STEPS = 10


def trained(case, options):
    graph = graph_of(case)
    batches = [case.batch(np.random.default_rng(number)) for number in range(STEPS)]
    run = eagerly(graph) if case.eager else graph
    if options is not None:
        args, kwargs = batches[0]
        run = autoddl.optimize(graph, *args, **options, **kwargs).apply(graph)
    return [leaves(run(*args, **kwargs)) for args, kwargs in batches]


def eagerly(graph):
    """Return what does a step of a graph as its optimizer does it outside of graphs."""
    model, optimizer = graph.model.to(nn.Module), graph._opts[0]["optim"]

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.clip_grad()
        optimizer.step()
        return loss

    return step


folder, seen = Path(sys.argv[1]), []
for name, options in json.loads(sys.argv[2]):
    print(f"{name} under {options}", flush=True)  # which one it was, should ranks be killed or hang
    try:
        seen.append(trained(CASES[name], options))
    except autoddl.AutoDDLError as error:
        seen.append(str(error))
    except Exception as error:
        seen.append(f"{type(error).__name__}: {error}")
    gc.collect()
(folder / f"rank{flow.env.get_rank()}.json").write_text(json.dumps(seen))
