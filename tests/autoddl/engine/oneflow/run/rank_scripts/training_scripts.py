"""Run training scripts for ten steps each: `training_scripts.py FOLDER PLANS HOW`.

PLANS is JSON: the options of plans by name, null for one process without autoddl. HOW is "all", for all
cases under every plan, or "in turn", for each case under another plan than the next. Adds what each
step returned, or the line of the error, to rank<N>.jsonl, a line for each plan and case; what is there
already is not run again.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from autoddl import store
from tests.autoddl.engine.oneflow.run.training_cases import CASES, graph_of, leaves
from tests.support.budgets import LITTLE

STEPS = 10


def trained(case, options):
    graph = graph_of(case)
    batches = [case.batch(np.random.default_rng(number)) for number in range(STEPS)]
    run = eagerly(graph) if case.eager else graph
    if options is not None:
        args, kwargs = batches[0]
        run = autoddl.optimize(graph, *args, budget=LITTLE, **options, **kwargs).apply(graph)
    found = [leaves(run(*args, **kwargs)) for args, kwargs in batches]
    if options is not None:
        run.close()
    return found


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


folder, plans, how = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
file = folder / f"rank{flow.env.get_rank()}.jsonl"
file.touch()
done = {(plan, name) for plan, name, _ in store.read(file)[0].values()}
for number, (name, case) in enumerate(CASES.items()):
    for place, (plan, options) in enumerate(plans.items()):
        if (plan, name) in done or (how != "all" and number % len(plans) != place):
            continue
        print(
            f"{name} under {plan}", flush=True
        )  # which one it was, should ranks be killed or hang
        try:
            seen = trained(case, options)
        except autoddl.AutoDDLError as error:
            seen = str(error)
        store.append(file, [plan, name, seen])
