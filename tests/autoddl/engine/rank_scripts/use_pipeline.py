"""On four ranks, two stages of two: feed in every way, save and load, refuse bad input.

Writes what it saw to one JSON file per rank; the test judges it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from experiments.models import gpt
from experiments.models.training import OPTIMIZERS, seed_weights

PIPELINE = {"mesh": "2", "pipeline": 2, "micro_batches": 2, "pin": {"input.*": "S0"}}


def fresh(**sizes):
    graph, inputs = gpt.build(**{**gpt.SIZES["toy"], **sizes}, optimizer="sgd")
    seed_weights(graph.model.to(nn.Module), 1)
    return graph, inputs


def one_process(steps):
    """Train on whole batches: the loss is a mean over equal micro-batches, its gradient the same."""
    graph, (x, y) = fresh()
    model, losses = graph.model.to(nn.Module), []
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for _ in range(steps):
        loss = graph.loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.numpy()))
    return losses, {name: p.numpy().copy() for name, p in model.named_parameters()}


def refusal(action):
    try:
        action()
    except autoddl.AutoDDLError as error:
        return str(error)
    return "no error"


def local_parts(plan, tensors):
    """Return this rank's part of one micro-batch after the other."""
    coordinate, count = flow.env.get_rank() % plan.mesh.size, plan.pipeline.micro_batches
    parts = []
    for tensor, item in zip(tensors, plan.inputs, strict=True):
        part = item.local_slice(coordinate)
        parts.append(flow.cat([micro[part] for micro in tensor.chunk(count, dim=0)], dim=0))
    return parts


def distance(plan, model, weights):
    """Return the greatest difference of weights that are on this rank."""
    whole, found = [flow.sbp.broadcast] * plan.mesh.ndim, 0.0
    for name, parameter in model.named_parameters():
        local = parameter.to_global(placement=parameter.placement, sbp=whole).to_local()
        if flow.env.get_rank() in parameter.placement.ranks.flatten():
            found = max(found, float(np.abs(local.numpy() - weights[name]).max()))
    return found


def main(out):
    rank, seen = flow.env.get_rank(), {}
    seen["reference"], weights = one_process(5)
    graph, (x, y) = fresh()
    plan = autoddl.optimize(graph, x, y, **PIPELINE)
    seen["plan"] = plan.to_json()
    seen["inputs"] = [str(item.state) for item in plan.inputs]
    plan.save(out / f"plan{rank}.json")
    plan = autoddl.load(out / f"plan{rank}.json")
    step = plan.apply(graph)
    whole = [flow.sbp.broadcast]
    everywhere = flow.placement("cpu", list(range(4)))
    first = plan.pipeline.stage_of[plan.inputs[0].name]
    parts = local_parts(plan, (x, y))
    made = [
        step(x, y),
        step.from_local(*parts),
        step(*(t.to_global(placement=everywhere, sbp=whole) for t in (x, y))),
        step(*(t.to_global(placement=step.placements[first], sbp=whole) for t in (x, y))),
        step(x, y),
    ]
    seen["global"] = all(loss.is_global for loss in made)
    seen["losses"] = [float(loss.to_local().numpy()) for loss in made]
    model = graph.model.to(nn.Module)
    seen["trained"] = distance(plan, model, weights)
    state = model.state_dict()
    for number in range(plan.pipeline.stages):  # a file for what is on the devices of each stage
        here = {n: t for n, t in state.items() if plan.pipeline.stage_of[f"model.{n}"] == number}
        flow.save(here, str(out / f"stage{number}"), global_dst_rank=number * plan.mesh.size)
    other, _ = fresh()
    seed_weights(other.model.to(nn.Module), 2)
    target = other.model.to(nn.Module)
    plan.apply(other)
    for number in range(plan.pipeline.stages):
        source = number * plan.mesh.size
        target.load_state_dict(
            flow.load(str(out / f"stage{number}"), global_src_rank=source), strict=False
        )
    seen["loaded"] = distance(plan, target, weights)
    short = x[:4]
    seen["short"] = refusal(lambda: step(short, short))
    seen["wrong part"] = refusal(lambda: step.from_local(x[:3], y[:3]))
    program = autoddl.capture(fresh()[0], x, y)
    wide = autoddl.optimize(program, mesh="2", pipeline=4, micro_batches=2)
    seen["ranks"] = refusal(lambda: wide.apply(fresh()[0]))
    seen["another graph"] = refusal(lambda: plan.apply(fresh(layers=1)[0]))
    wider = fresh(heads=2)[0]
    seen["another graph, same variables"] = refusal(lambda: plan.apply(wider)(x, y))
    (out / f"rank{rank}.json").write_text(json.dumps(seen))


main(Path(sys.argv[1]))
