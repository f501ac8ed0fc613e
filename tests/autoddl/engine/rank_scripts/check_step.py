"""On four ranks: plan inside the ranks, apply, feed in every way, save and load, refuse bad input.

Writes what it saw to one JSON file per rank; the test judges it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

import autoddl
from autoddl.make_plan import make_plan
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import BASELINES
from autoddl.search.builder import build
from autoddl.search.kept import with_kept
from autoddl.search.passes import made_again
from autoddl.search.problem import KEPT
from autoddl.search.random import random_assignment
from experiments.models import gpt
from experiments.models.training import OPTIMIZERS, seed_weights


def fresh_graph():
    return gpt.build(**gpt.SIZES["toy"], optimizer="sgd")


def fresh():
    graph, inputs = fresh_graph()
    seed_weights(graph.model.to(flow.nn.Module), 1)
    return graph, inputs


def one_device(steps):
    graph, (x, y) = fresh()
    model = graph.model.to(flow.nn.Module)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    losses = []
    for _ in range(steps):
        loss = graph.loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.numpy()))
    return losses, {name: p.numpy() for name, p in model.named_parameters()}


def refusal(action):
    try:
        action()
    except autoddl.AutoDDLError as error:
        return str(error)
    return "no error"


def waiting_plan(program, mesh):
    """Return a plan whose tensors wait for the backward pass in states drawn at random."""
    problem = with_kept(build(program, Mesh.parse(mesh), profiles.load(None)))
    assignment = list(made_again(problem, BASELINES["ZeRO 2"](problem)))
    drawn, tables = random_assignment(problem, 3), [edge.table for edge in problem.edges]
    for edge, table in zip(problem.edges, tables, strict=True):
        for node, states in edge.readers:
            if problem.nodes[node].kind == KEPT:
                source = edge.source[assignment[edge.producer]]
                goal = states[drawn[node]]
                if "P" not in str(table.states[goal]) and np.isfinite(table.cost[source, goal]):
                    assignment[node] = drawn[node]
    return make_plan(problem, problem.result("waiting", tuple(assignment)))


def main(out, mesh):
    rank = flow.env.get_rank()
    reference, weights = one_device(4)
    graph, (x, y) = fresh()
    plan = autoddl.optimize(graph, x, y, mesh=mesh)
    seen = {"plan": plan.to_json(), "reference": reference}
    step = plan.apply(graph)
    everywhere = [flow.sbp.broadcast] * plan.mesh.ndim
    split = [flow.sbp.split(0), *everywhere[1:]]
    losses = [step(x, y)]
    losses.append(
        step(
            *(
                t.to_global(placement=step.placements[0], sbp=everywhere).to_global(sbp=split)
                for t in (x, y)
            )
        )
    )
    parts = [
        t[item.local_slice(rank)].contiguous() for t, item in zip((x, y), plan.inputs, strict=True)
    ]
    losses.append(step.from_local(*parts))
    losses.append(step(x, y))
    seen["global"] = losses[0].is_global
    seen["losses"] = [float(loss.numpy()) for loss in losses]
    model = graph.model.to(flow.nn.Module)
    flow.save(model.state_dict(), str(out / "model"), global_dst_rank=0)
    other, _ = fresh()
    target = other.model.to(flow.nn.Module)
    autoddl.optimize(other, x, y, mesh=mesh).apply(other)
    target.load_state_dict(flow.load(str(out / "model"), global_src_rank=0))
    distance = 0.0
    for name, parameter in target.named_parameters():
        local = parameter.to_global(sbp=everywhere).to_local().numpy()
        distance = max(distance, float(np.abs(local - weights[name]).max()))
    seen["weights"] = distance
    seen["changed"] = step.changed_signatures
    again, _ = fresh()
    waiting = waiting_plan(plan.program, mesh)
    seen["late"] = [sum(bool(r.after) for r in waiting.redistributions)]
    seen["late"].append(sum(bool(r.early) for r in waiting.redistributions))
    step = waiting.apply(again)
    seen["waiting"] = [float(step(x, y).numpy()) for _ in range(4)]
    seen["changed"] += step.changed_signatures
    short = x[:4]
    seen["short"] = refusal(lambda: step(short, short))
    seen["wrong part"] = refusal(lambda: step.from_local(x[:3], y[:3]))
    small = autoddl.optimize(autoddl.capture(fresh()[0], x, y), mesh="2")
    seen["ranks"] = refusal(lambda: small.apply(fresh()[0]))
    foreign, _ = gpt.build(**{**gpt.SIZES["toy"], "layers": 1})
    seen["another graph"] = refusal(lambda: plan.apply(foreign))
    wider, _ = gpt.build(**{**gpt.SIZES["toy"], "heads": 2})
    seen["another graph, same variables"] = refusal(lambda: plan.apply(wider)(x, y))
    with autoddl.abstract_parameters():
        abstract, _ = fresh_graph()
    seen["abstract"] = refusal(lambda: plan.apply(abstract))
    (out / f"rank{rank}.json").write_text(json.dumps(seen))


main(Path(sys.argv[1]), sys.argv[2])
