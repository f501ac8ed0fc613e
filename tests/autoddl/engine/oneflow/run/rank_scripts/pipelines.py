"""Train models under plans with stages, and on rank 0 in a plain loop over micro-batches.

Arguments: a folder, and a case as JSON. Each rank writes what it saw as JSON, the first rank of each
stage the weights that are there, rank 0 the reference.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from autoddl.engine.oneflow.job import parameter_gathers
from autoddl.engine.oneflow.job.stage_writer import AGAIN
from autoddl.engine.oneflow.run import agree
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.pipeline.stage_graph import orders
from autoddl.planner.assemble import staged_plan
from autoddl.planner.stages.free_cut import in_stages, stage_graph
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.stages.staged_trial import staged_trials
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import synchronised
from autoddl.sbp.rewrites.micro_batch import micro_batch
from experiments.lib.oneflow_problems import read
from experiments.models import build
from experiments.models.training import (
    OPTIMIZERS,
    TrainGraph,
    cross_entropy,
    mean_squared_error,
    seed_weights,
)
from tests.support.budgets import LITTLE
from tests.support.clusters import of_two_kinds
from tests.support.unlike_parts import parted

STEPS = 5


class Tied(nn.Module):
    """Embedding and head share one parameter, which is read in the first and in the last stage."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(32, 16)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU())
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        return self.head(self.inner(self.token(ids)))


class TwoOptimizers(TrainGraph):
    """Matrices with momentum, vectors with Adam."""

    def __init__(self, model, loss):
        nn.Graph.__init__(self)
        self.model, self.loss = model, loss
        for name, wide in (("sgd", True), ("adam", False)):
            self.add_optimizer(
                OPTIMIZERS[name]([p for p in model.parameters() if (p.ndim > 1) is wide])
            )


class Clipped(TrainGraph):
    """SGD with the norm of all gradients limited."""

    def __init__(self, model, loss):
        nn.Graph.__init__(self)
        self.model, self.loss = model, loss
        group = {"params": list(model.parameters()), "lr": 0.1}
        limit = {"clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0}
        self.add_optimizer(flow.optim.SGD([{**group, **limit}]))


class Scored(Clipped):
    """Returns the loss, the prediction and the sum of its squares: whole, by sample, by micro-batch."""

    def build(self, x, y):
        made = self.model(x)
        loss = self.loss(made, y)
        loss.backward()
        return {"loss": loss, "made": made, "size": made.square().sum()}


def layers(*extra):
    return nn.Sequential(
        nn.Linear(8, 16), *extra, nn.ReLU(), nn.Linear(16, 16), *extra, nn.ReLU(), nn.Linear(16, 8)
    )


def images():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(),
    )  # fmt: skip


def numbers(*shape):
    return flow.tensor(np.random.default_rng(5).normal(size=shape).astype(np.float32))


def made(case):
    """Return (graph, inputs) of a case, with the same weights on every rank."""
    name, optimizer = case["model"], case.get("optimizer", "sgd")
    if name == "norm":
        inputs = numbers(8, 3, 6, 6), numbers(8, 8, 6, 6)
        graph = TrainGraph(images(), mean_squared_error, optimizer)
    elif name == "tied":
        ids = flow.tensor(np.random.default_rng(5).integers(0, 32, (2, 8, 4)))
        graph, inputs = TrainGraph(Tied(), cross_entropy, optimizer), (ids[0], ids[1])
    elif name in OWN:
        graph, inputs = OWN[name](layers(), mean_squared_error), (numbers(8, 8), numbers(8, 8))
    else:
        graph, inputs = build(name, "toy", optimizer=optimizer, **case.get("sizes", {}))
    seed_weights(graph.model.to(nn.Module), 1, scale=case.get("scale", 0.05))
    return graph, inputs


OWN = {"scored": Scored, "two": TwoOptimizers}


def reference(case, graph, inputs, out):
    """Accumulate gradients in a plain loop; save the weights, return the losses and last predictions."""
    model, optimizers = graph.model.to(nn.Module), [entry["optim"] for entry in graph._opts]
    count, losses = case["micro_batches"], []
    for _ in range(STEPS):
        parts, predictions = [], []
        for part in zip(*(x.chunk(count, dim=0) for x in inputs), strict=True):
            predictions.append(model(*part[:-1]))
            loss = graph.loss(predictions[-1], part[-1])
            (loss / count).backward()
            parts.append(float(loss.numpy()))
        for optimizer in optimizers:
            if case["model"] == "scored":
                optimizer.clip_grad()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(np.mean(parts)))
    np.savez(out / "reference.npz", **{n: t.numpy() for n, t in held(model)})
    sizes = [float(p.square().sum().numpy()) for p in predictions]
    return {"losses": losses, "made": flow.cat(predictions).numpy().tolist(), "size": sizes}


def held(model):
    return [*model.named_parameters(), *model.named_buffers()]


def save_weights(plan, model, out):
    """Save what a stage has from its first rank."""
    rank, found = flow.env.get_rank(), {}
    for name, tensor in held(model):
        whole = [flow.sbp.broadcast] * len(tensor.sbp)
        local = tensor.to_global(placement=tensor.placement, sbp=whole).to_local()
        if flow.env.get_rank() in tensor.placement.ranks.flatten():
            found[name] = local.numpy().copy()
    for stage, part in enumerate(plan.parts):
        if rank == part.ranks[0]:
            np.savez(out / f"stage{stage}.npz", **found)


def planned(case, graph, inputs):
    """Return the plan of a case: on its parts, with stages where it says, or where it is best."""
    if "cluster" in case:
        where = {"cluster": case["cluster"], "profile": of_two_kinds(profiles.load(None))}
        return autoddl.optimize(graph, *inputs, budget=LITTLE, **where, **case["options"])
    if "parts" in case:
        program = autoddl.capture(graph, *inputs)
        count = case["micro_batches"]
        micro = micro_batch(program, count)
        given = synchronised(micro) if case.get("in_parts") else micro, case["parts"], count
        return autoddl.Plan.of(agree.from_rank_0(lambda: parted(*given, **case["by"])))
    options = {
        "mesh": case["mesh"], "pipeline": case["pipeline"], "micro_batches": case["micro_batches"],
        **{"budget": LITTLE, **case.get("options", {})},
    }  # fmt: skip
    if not {"bounds", "order"} & case.keys():
        return autoddl.optimize(graph, *inputs, **options)
    program = autoddl.capture(graph, *inputs)

    def make():
        asked = read(program, agree.cluster(), **options)
        (trial,) = staged_trials(asked, partial(micro_batch, program))
        *_, solution = trial.search(asked.budget.begin(), rough=False)
        whole, bounds = solution.found, case.get("bounds")
        if bounds is None:
            cut = in_another_order(whole, case["order"])
            return staged_plan(cut, solution.result)
        places = positions(whole.program)
        cut = Staged.equal(whole.assigned(0), places, bounds, whole.micro_batches, whole.links)
        return staged_plan(cut, solution.result)

    return autoddl.Plan.of(agree.from_rank_0(make))


def in_another_order(whole, number):
    """Return equal stages of forward ops along a topological order that is not that of capture."""
    given = whole.assigned(0), whole.stages, whole.micro_batches, whole.links
    graph = stage_graph(*given)
    order = [
        node for node in list(orders(graph.edges, len(graph.seconds)))[number] if node < graph.units
    ]
    stage_of = [order.index(node) * whole.stages // graph.units for node in range(graph.units)]
    assert stage_of != sorted(stage_of), "it is the order of capture"
    return in_stages(given[0], stage_of, *given[2:])


def run(case, out):
    rank, seen = flow.env.get_rank(), {}
    other = made(case)  # on every rank: ranks count graphs, and have to agree on the numbers
    if rank == 0:
        seen["reference"] = reference(case, *other, out)
    graph, inputs = made(case)
    plan = planned(case, graph, inputs)
    again = case.get("recomputed", ())
    parts = (replace(part, recomputed=n in again) for n, part in enumerate(plan.parts))
    plan = replace(plan, parts=tuple(parts))
    step = plan.apply(graph)
    if case.get("global"):
        everywhere = flow.placement("cpu", list(range(flow.env.get_world_size())))
        inputs = [x.to_global(everywhere, flow.sbp.broadcast) for x in inputs]
    found = [step(*inputs) for _ in range(STEPS)]
    losses = [made["loss"] if isinstance(made, dict) else made for made in found]
    seen["losses"] = [float(loss.to_local().numpy()) for loss in losses]
    if isinstance(found[-1], dict):
        for name in ("made", "size"):
            output = found[-1][name]
            if rank in output.placement.ranks.flatten():
                seen[name] = output.to_local().numpy().tolist()
    seen["changed"] = step.changed_signatures
    waiting = [op for op in step._running.compiled.net.op if op.ctrl_in_op_name]
    seen["gathered in turn"] = sum(op.name.startswith("autoddl-boxing-") for op in waiting)
    seen["behind again"] = [
        op.name for op in waiting if any(name.startswith(AGAIN) for name in op.ctrl_in_op_name)
    ]
    seen["again"] = [op.name for op in step._running.compiled.net.op if "-again-" in op.name]
    seen["stages"] = dict(plan.stage_of)
    seen["forward"] = [op.name for op in plan.program.ops if op.phase == "forward"]
    producer = plan.program.producer
    seen["transfers"] = [
        [producer[t.tensor].name if t.tensor in producer else t.tensor, t.target]
        for t in plan.transfers
    ]
    save_weights(plan, graph.model.to(nn.Module), out)
    (out / f"rank{rank}.json").write_text(json.dumps(seen))


def adam(parameters):
    """Softmax takes no notice of the keys' bias: its gradient is rounding; no big steps of that."""
    return flow.optim.Adam(parameters, lr=1e-2, eps=1e-3)


# Each gather of such small parameters waits for the one before.
with patch.object(parameter_gathers, "GATHERED_AT_ONCE", 0), patch.dict(OPTIMIZERS, adam=adam):
    run(json.loads(sys.argv[2]), Path(sys.argv[1]))
