"""What a published row trains, as a model of the zoo, and its program, traced once for all batches.

Inputs and layers are those of the sources' code, not of the papers: LiBai's BERT computes its head for
all positions, DLPerf's for 20 of 128. A program is traced at a batch that all micro-batches of its rows
divide, and made smaller: those of 24 and 64 samples are two parts of one of 192.

Source: Oneflow-Inc/libai 9dcbe3b configs/; Oneflow-Inc/OneFlow-Benchmark 8a78044 and 854ddd0, of which
the former (float32) has no fused batch norm; Oneflow-Inc/DLPerf */scripts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from experiments.lib.programs import captured
from experiments.published.published_rows import LAYERS, PublishedRow

HALF = "float16"
TRACED = 2  # samples for which inputs are made
DLPERF_BERT = "BERT-base, masked positions 20 of 128"
RESNET = "ResNet-50 v1.5"


@dataclass(frozen=True)
class TrainedModel:
    """A model of the zoo, as it is trained; `sizes` are its overrides, sorted by name."""

    model: str
    precision: str
    sizes: tuple[tuple[str, Any], ...]
    size: str = "toy"

    @property
    def loss_scale(self) -> bool:
        """Tell whether losses are scaled: they are in half precision."""
        return self.precision == HALF


def trained(row: PublishedRow) -> TrainedModel:
    """Return what a row trains."""
    precision = HALF if row.precision.startswith(HALF) else row.precision
    sizes: dict[str, Any] = {"batch": TRACED}
    if row.model.startswith(RESNET):
        sizes |= {"fused": precision == HALF}
        return TrainedModel("resnet50", precision, _sorted(sizes), "resnet50")
    sizes |= {name: getattr(row, name) for name in LAYERS} | {"optimizer": "clipped_adamw"}
    if row.model.startswith(DLPERF_BERT):
        sizes |= {"predicted": 20, "dropout": 0.1}
        return TrainedModel("bert", precision, _sorted(sizes))
    name = "fused_bert" if row.model == "BERT" else "fused_gpt"
    return TrainedModel(name, precision, _sorted(sizes))


def _sorted(sizes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(sizes.items()))


def traced(folder: Path, model: TrainedModel, samples: int) -> Program:
    """Return the program of a model for so many samples; it is kept in a folder."""
    key = json.dumps([model.size, model.sizes, samples])
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    file = folder / f"{model.model}-{model.precision}-{digest}.json"
    return captured(
        file, model.model, model.size, model.precision, samples=samples,
        loss_scale=model.loss_scale, **dict(model.sizes),
    )  # fmt: skip


class TracedPrograms:
    """The programs of models for several batches, of which each is a part of one that is traced."""

    def __init__(self, folder: Path, wanted: Iterable[tuple[TrainedModel, int]]) -> None:
        self.samples: dict[TrainedModel, int] = {}
        for model, samples in wanted:
            self.samples[model] = math.lcm(self.samples.get(model, 1), samples)
        self._whole = cache(lambda model: traced(folder, model, self.samples[model]))

    def __call__(self, model: TrainedModel, samples: int) -> Program:
        """Return the program of a batch of so many samples."""
        return micro_batch(self._whole(model), self.samples[model] // samples)
