"""What graphs hold beside parameters and inputs: `captured.py FOLDER`, on two ranks or four.

Seeds, constants, sparse updates, records that they read themselves. Writes what every rank sees as JSON:
losses, digests of copies of parameters, refusals.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow
from oneflow import nn

import autoddl
from experiments.models.training import seed_weights
from tests.autoddl.engine.oneflow.run.captured_cases import (
    OPTIMIZERS,
    PARTS,
    ROWS,
    SPARSE,
    STEPS,
    VOCABULARY,
    WIDTH,
    ids,
    linear,
    records,
    table,
)
from tests.support.budgets import LITTLE
from tests.support.records import SUFFIX, write_records

RANK = flow.env.get_rank()


def batch(number):
    rng = np.random.default_rng(number)
    return flow.tensor(rng.normal(size=(ROWS, WIDTH)).astype(np.float32))


def words(number):
    return flow.tensor(ids(number))


def graph_of(model):
    seed_weights(model, 1)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x):
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    return Train()


def losses_of(step):
    return [float(step(batch(number)).to_local().numpy()) for number in range(STEPS)]


def digest(model):
    """Tell this rank's copies of the parameters, whole in data parallelism, from others."""
    values = [p.detach().to_local().numpy().tobytes() for p in model.parameters()]
    return hashlib.sha256(b"".join(values)).hexdigest()


class Noisy(nn.Module):
    """Noise that is added, and a stochastic depth of half the rows."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.inner(x) + flow.randn(1, WIDTH) + flow.rand(1, WIDTH)
        return self.outer(h) * flow.bernoulli(flow.full((ROWS, 1), 0.5)) + h


class Masked(nn.Module):
    """A mask that each rank draws for itself."""

    def __init__(self, seed):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.mask = flow.tensor(np.random.default_rng(seed).random(WIDTH).astype(np.float32))

    def forward(self, x):
        return self.inner(x) * self.mask


def noisy(folder):
    """Draw seeds of its own on each rank, and apply a saved plan after another seed was set."""
    flow.manual_seed(RANK)
    model = Noisy()
    graph = graph_of(model)
    plan = autoddl.optimize(graph, batch(0), mesh="2", search="data parallel")
    step = plan.apply(graph)
    seen = {"losses": losses_of(step), "copies": digest(model)}
    step.close()
    if RANK == 0:
        plan.save(folder / "plan.json")
    flow.comm.barrier()
    flow.manual_seed(11)
    model = Noisy()
    graph = graph_of(model)
    step = autoddl.load(folder / "plan.json").apply(graph)
    seen["reseeded"] = losses_of(step)
    step.close()
    return seen


def masked(seed):
    model = Masked(seed)
    graph = graph_of(model)
    step = autoddl.optimize(graph, batch(0), mesh="2", search="data parallel").apply(graph)
    seen = {"losses": losses_of(step), "copies": digest(model)}
    step.close()
    return seen


def sparse(kind, pin):
    """Train an embedding of which only the rows are updated that a batch has looked up."""
    model = nn.Embedding(VOCABULARY, WIDTH)
    model.weight.data.copy_(flow.tensor(table()))
    optimizer = OPTIMIZERS[kind](model.parameters())

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, is_sparse=True)

        def build(self, ids):
            loss = self.model(ids).square().mean()
            loss.backward()
            return loss

    graph = Train()
    step = autoddl.optimize(
        graph, words(0), mesh="2", budget=LITTLE, pin={"model.weight": pin}
    ).apply(graph)
    losses = [float(step(words(number)).to_local().numpy()) for number in range(STEPS)]
    weight = step.state_dict()["model"]["weight"].numpy().tolist()
    step.close()
    return {"losses": losses, "table": weight}


def reading(folder, mesh, state):
    """Train on records that the graph reads."""
    model = nn.Linear(WIDTH, 1)
    for parameter, values in zip((model.weight, model.bias), linear(), strict=True):
        parameter.data.copy_(flow.tensor(values))

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.records = nn.OFRecordReader(
                str(folder), batch_size=ROWS, data_part_num=PARTS, part_name_suffix_length=SUFFIX
            )
            self.x = nn.OFRecordRawDecoder("x", (WIDTH,), dtype=flow.float32)
            self.y = nn.OFRecordRawDecoder("y", (1,), dtype=flow.float32)
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self):
            records = self.records()
            loss = (self.model(self.x(records)) - self.y(records)).square().mean()
            loss.backward()
            return loss, self.y(records)

    graph = Train()
    step = autoddl.optimize(graph, mesh=mesh, budget=LITTLE, pin={"read.*": state}).apply(graph)
    seen = [[value.to_local().numpy().ravel().tolist() for value in step()] for _ in range(STEPS)]
    step.close()
    return seen


folder = Path(sys.argv[1])
if RANK == 0:
    write_records(folder / "records", records(), PARTS)
flow.comm.barrier()
if flow.env.get_world_size() == 2:
    seen = {"noisy": noisy(folder), "drawn by each": masked(RANK), "drawn by rank 0": masked(0)}
    seen["sparse"] = {f"{k} {pin}": sparse(k, pin) for k, pin in SPARSE}
    ways = {"cut": ("2", "S0"), "whole": ("2", "B")}
else:
    seen, ways = {}, {"cut twice": ("2x2", "S0,S0"), "cut once": ("2x2", "B,S0")}
seen["reading"] = {name: reading(folder / "records", *way) for name, way in ways.items()}
(folder / f"rank{RANK}.json").write_text(json.dumps(seen))
