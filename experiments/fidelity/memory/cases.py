"""Which plans are compiled for CUDA: models of some size, baselines and random plans by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import BASELINES
from autoddl.search.heuristics.descent import Descent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import Assignment
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from experiments.lib.programs import captured

AGAIN = ", made again"  # a baseline whose tensors wait for the backward pass as they were made
# Some 100 MB on each rank, so that no fixed part dominates.
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 4, "width": 512, "heads": 8, "sequence": 128, "vocabulary": 2048, "batch": 8,
        "optimizer": "adam",
    },
    "vgg13": {"image": 64, "classes": 1000, "channel_scale": 1, "dense": 1024, "batch": 16},
    "bert_moe": {
        "layers": 2, "width": 256, "heads": 4, "sequence": 64, "vocabulary": 1024, "batch": 16,
        "optimizer": "adam",
    },
}  # fmt: skip


def problem_of(
    folder: Path, model: str, mesh: str, sizes: Mapping[str, Any],
    precision: str | None = None, compute_stream: bool = False,
) -> CostNetwork:  # fmt: skip
    """Return the network of a model of these sizes, which is traced once, and kept in `folder`."""
    file = folder / "programs" / f"{'-'.join(filter(None, (model, precision)))}.json"
    program = captured(file, model, "toy", precision or "", **sizes)
    profile = profiles.load(None)
    profile = replace(profile, overlap=dict.fromkeys(profile.levels, 1.0))  # so ops get an order
    built = builder.build(program, Mesh.parse(mesh), profile, compute_stream=compute_stream)
    return SavedTensors.apply(built).network if compute_stream else built


def assignment_of(problem: CostNetwork, name: str) -> Assignment | None:
    """Return a baseline, None if it does not apply; or what "random SEED" or "refined SEED" names."""
    baseline = name.removesuffix(AGAIN)
    if baseline in BASELINES:
        found = BASELINES[baseline](problem)
        if found is None or name == baseline:
            return found
        saved = SavedTensors(problem)
        return saved.as_made(saved.invert(found))
    kind, _, seed = name.partition(" ")
    drawn = random_assignment(problem, int(seed))
    return Assignment(Descent(problem).refine(drawn)) if kind == "refined" else drawn
