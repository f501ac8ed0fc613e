"""On four ranks: plan inside them, apply, feed in every way, save and load, refuse bad input.

Writes what it saw to one JSON file per rank; the test judges it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from msgspec.structs import replace
from oneflow import nn

import autoddl
from autoddl.engine.oneflow.run.agree import from_rank_0
from autoddl.perfmodel import profile as profiles
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import BASELINES, assignments
from autoddl.search.network.cost_network import SAVED
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from experiments.models import gpt, mlp
from experiments.models.training import OPTIMIZERS, TrainGraph, mean_squared_error, seed_weights
from tests.support.budgets import LITTLE
from tests.support.refusals import refusal

WIDTHS = (8, 16, 16, 8)
NESTED = "2x2"
SETTINGS = {
    NESTED: {"mesh": "2x2"},
    "stages": {"mesh": "2", "pipeline": 2, "micro_batches": 2, "pin": {"input.*": "S0"}},
    "halves": {"mesh": "2x2", "duplex": True, "pin": {"input.*": "S0,S0"}},
}
OTHER = {"mesh": "2"}, {"mesh": "2", "pipeline": 4, "micro_batches": 2}  # of other numbers of ranks


def fresh():
    graph, inputs = mlp.build(widths=WIDTHS)
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


def local_parts(plan, tensors):
    """Return this rank's part of one micro-batch, or half, after the other."""
    coordinate, count = (
        flow.env.get_rank() % plan.mesh.size,
        2 if plan.duplex else plan.micro_batches,
    )
    parts = []
    for tensor, item in zip(tensors, plan.inputs, strict=not plan.duplex):
        part = item.local_slice(coordinate)
        micro = tensor.chunk(count, dim=0) if count > 1 else [tensor]
        parts.append(flow.cat([m[part] for m in micro], dim=0).contiguous())
    return parts


def global_inputs(plan, step, tensors):
    """Yield the inputs as global tensors of several states and placements."""
    first, whole = step.placements[plan.stage_of[plan.inputs[0].name]], [flow.sbp.broadcast]
    if plan.pipelined:
        for placement in (flow.placement("cpu", list(range(flow.env.get_world_size()))), first):
            yield [t.to_global(placement=placement, sbp=whole) for t in tensors]
        return
    everywhere = whole * plan.mesh.ndim
    split = [flow.sbp.split(0), *everywhere[1:]]
    yield [t.to_global(placement=first, sbp=everywhere) for t in tensors]
    yield [t.to_global(placement=first, sbp=everywhere).to_global(sbp=split) for t in tensors]


def distance(plan, model, weights):
    """Return the greatest difference of weights that are on this rank."""
    whole, found = [flow.sbp.broadcast] * plan.mesh.ndim, 0.0
    for name, parameter in model.named_parameters():
        local = parameter.to_global(placement=parameter.placement, sbp=whole).to_local()
        if flow.env.get_rank() in parameter.placement.ranks.flatten():
            found = max(found, float(np.abs(local.numpy() - weights[name]).max()))
    return found


def waiting_plan(program, mesh):
    """Return a plan whose tensors wait for the backward pass in states drawn at random."""
    saved = SavedTensors.apply(build(program, Mesh.parse(mesh), profiles.load(None)))
    problem = saved.network
    assignment = list(saved.as_made(saved.invert(BASELINES["ZeRO 2"](problem))))
    drawn, factors = random_assignment(problem, 3), problem.factors
    saved = problem.variables.of_kind(SAVED)
    for factor, number in enumerate(factors.table):
        table, ((producer, made), *readers) = factors.tables[number], factors.ends(factor)
        for node, states in readers:
            if saved[node]:
                source = made[assignment[producer]]
                goal = states[drawn[node]]
                if "P" not in str(table.states[goal]) and np.isfinite(table.cost[source, goal]):
                    assignment[node] = drawn[node]
    return make_plan(problem, problem.result("waiting", tuple(assignment)))


def ordered_plan(program, mesh):
    """Return the plan of a baseline whose ops go in another order than that in which they are ready."""
    profile = replace(profiles.load(None), overlap={"gpu": 1.0})
    problem = build(program, Mesh.parse(mesh), profile)
    plans = [make_plan(problem, problem.result(k, a)) for k, a in assignments(problem).items()]
    return next(plan for plan in plans if plan.layout.after)


def apply_ordered(program, mesh, x, y):
    """Return what training under such a plan says."""
    step = autoddl.Plan.of(from_rank_0(lambda: ordered_plan(program, mesh))).apply(fresh()[0])
    return {"ordered": [float(step(x, y).numpy()) for _ in range(5)]}


def apply_waiting(program, mesh, x, y):
    """Return what training under such a plan says."""
    plan = autoddl.Plan.of(from_rank_0(lambda: waiting_plan(program, mesh)))
    step = plan.apply(fresh()[0])
    return {
        "waiting": [float(step(x, y).numpy()) for _ in range(5)],
        "late": [sum(bool(r.after) for r in plan.redistributions),
                 sum(bool(r.early) for r in plan.redistributions)],
        "changed": step.changed_signatures,
    }  # fmt: skip


def main(out):
    rank, seen, options = flow.env.get_rank(), {}, SETTINGS[SETTING]
    seen["reference"], weights = one_process(5)
    graph, (x, y) = fresh()
    plan = autoddl.optimize(graph, x, y, budget=LITTLE, **options)
    seen["plan"] = plan.to_json()
    seen["inputs"] = [str(item.state) for item in plan.inputs]
    plan.save(out / f"plan{rank}.json")
    plan = autoddl.load(out / f"plan{rank}.json")
    step = plan.apply(graph)
    made = [step(x, y), step.from_local(*local_parts(plan, (x, y)))]
    made += [step(*inputs) for inputs in global_inputs(plan, step, (x, y))]
    made.append(step(x, y))
    seen["global"] = all(loss.is_global for loss in made)
    seen["losses"] = [float(loss.to_local().numpy()) for loss in made]
    seen["changed"] = step.changed_signatures
    model = graph.model.to(nn.Module)
    seen["trained"] = distance(plan, model, weights)
    state = model.state_dict()
    for number in range(len(plan.parts)):  # a file for what is on the devices of each stage
        here = {n: t for n, t in state.items() if plan.stage_of[f"model.{n}"] == number}
        flow.save(here, str(out / f"stage{number}"), global_dst_rank=number * plan.mesh.size)
    other, _ = fresh()
    target = other.model.to(nn.Module)
    seed_weights(target, 2)
    plan.apply(other)
    for number in range(len(plan.parts)):
        source = number * plan.mesh.size
        target.load_state_dict(
            flow.load(str(out / f"stage{number}"), global_src_rank=source), strict=False
        )
    seen["loaded"] = distance(plan, target, weights)
    if SETTING == NESTED:
        waiting = apply_waiting(plan.program, options["mesh"], x, y)
        seen["changed"] += waiting.pop("changed")
        seen |= waiting | apply_ordered(plan.program, options["mesh"], x, y)
    short = x[:4]
    seen["short"] = refusal(lambda: step(short, short))
    seen["wrong part"] = refusal(lambda: step.from_local(x[:3], y[:3]))
    if not plan.duplex:
        misfit = autoddl.optimize(plan.program, budget=LITTLE, **OTHER[plan.pipelined])
        seen["ranks"] = refusal(lambda: misfit.apply(fresh()[0]))
    if SETTING == NESTED:
        seen["another graph"] = refusal(lambda: plan.apply(gpt.build()[0]))
        layers = [
            nn.ReLU() if isinstance(m, nn.GELU) else m for m in fresh()[0].model.to(nn.Module)
        ]
        alike = TrainGraph(nn.Sequential(*layers), mean_squared_error, "sgd")
        seen["another graph, same variables"] = refusal(lambda: plan.apply(alike)(x, y))
        with autoddl.abstract_parameters():
            abstract, _ = mlp.build(widths=WIDTHS)
            weight = abstract.model.to(nn.Module)[0].weight
            weight.copy_(flow.ones(*weight.shape))
        seen["abstract"] = refusal(lambda: plan.apply(abstract)(x, y))
    (out / f"rank{rank}.json").write_text(json.dumps(seen))


SETTING = sys.argv[2]
main(Path(sys.argv[1]))
