"""Run training scripts for ten steps each: `training_scripts.py FOLDER PLANS [TURNS]`.

PLANS is JSON: the options of plans by name, null for one process without autoddl. TURNS are names of
plans under which cases are trained in turn, where PLANS has them; without it each is under every plan.
Adds what each step returned, or the line of the error, to rank<N>.jsonl, a line for each plan and case;
what is there already is not run again.
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


folder, plans, *turns = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
file = folder / f"rank{flow.env.get_rank()}.jsonl"
file.touch()
done = {(plan, name) for plan, name, _ in store.read(file)[0].values()}
for number, (name, case) in enumerate(CASES.items()):
    for plan in plans if not turns else plans.keys() & {turns[0][number % len(turns[0])]}:
        if (plan, name) in done:
            continue
        # which one it was, should ranks be killed or hang
        print(f"{name} under {plan}", flush=True)
        try:
            seen = trained(case, plans[plan])
        except autoddl.AutoDDLError as error:
            seen = str(error)
        store.append(file, [plan, name, seen])
