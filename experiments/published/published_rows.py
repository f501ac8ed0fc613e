"""Rows of published measurements: what trained on which devices, split how, and how fast.

`oneflow_gpu_clusters.csv` has a row for each, of OneFlow and of Megatron-LM on the same devices. BERT
with a batch of 1024 samples, 128 in each micro-batch, on 4 data-parallel devices in one node:

    dp 4, tp 1, pp 1, nodes 1, gpus_per_node 4, batch_per_step 1024, micro_batch 128, samples_per_s 100
    → 1024 / (128 · 4) = 2 micro-batches, a step of 10.24 s

Source: Oneflow-Inc/libai docs Benchmark.md, Oneflow-Inc/DLPerf reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Axis, Cluster, Level, Mesh

ONEFLOW = "OneFlow"  # what its engines' names begin with, versions behind
LAYERS = ("layers", "width", "heads", "sequence", "vocabulary")


class Degrees(NamedTuple):
    """Degrees of data, tensor and pipeline parallelism on so many nodes of as many devices.

    A stage has dp·tp devices one behind the other, tensor parallelism on neighbours: 2x4x4 on 4 nodes
    of 8 devices has a node for each stage, with a mesh [gpu 2][gpu 4].
    """

    dp: int
    tp: int
    pp: int
    nodes: int
    gpus_per_node: int

    def __str__(self) -> str:
        return f"{self.dp}x{self.tp}x{self.pp}"

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return self.nodes * self.gpus_per_node

    @property
    def cluster(self) -> Cluster:
        """Return the devices by level; one node has no level."""
        levels = Level("node", self.nodes), Level("gpu", self.gpus_per_node)
        return Cluster(tuple(level for level in levels if level.size > 1) or levels[1:])

    @property
    def mesh(self) -> Mesh:
        """Return the mesh of a stage; the last axis is that of tensor parallelism, if there is any."""
        size = self.dp * self.tp
        nodes = max(1, size // self.gpus_per_node)
        axes = Axis("node", nodes), Axis("gpu", size // nodes // self.tp), Axis("gpu", self.tp)
        return Mesh(tuple(axis for axis in axes if axis.size > 1) or axes[-1:])


@dataclass(frozen=True)
class PublishedRow:
    """A measured run; `dp`, `tp` and `pp` are the degrees of data, tensor and pipeline parallelism.

    `micro_batch` is that of a data-parallel group. Sizes of transformers are 0 for other models.
    """

    id: str
    source: str
    engine: str
    model: str
    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    precision: str
    recompute: str
    dp: int
    tp: int
    pp: int
    nodes: int
    gpus_per_node: int
    batch_per_step: int
    micro_batch: int
    samples_per_s: float

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> PublishedRow:
        """Return the row that a line of the file tells.

        Raises:
            AutoDDLError: the degrees are not those of the devices, a group of tensor parallelism spans
                nodes, or the batch is not one of micro-batches.
        """
        sizes = {name: 0 if pd.isna(told[name]) else int(told[name]) for name in LAYERS}
        row = cls(**{field.name: told[field.name] for field in fields(cls)} | sizes)
        if row.dp * row.tp * row.pp != row.degrees.devices or row.gpus_per_node % row.tp:
            raise AutoDDLError(
                f"row {row.id}: got {row.degrees} on {row.nodes} nodes of {row.gpus_per_node} devices; "
                "the product has to be all devices, and tensor parallelism to divide a node"
            )
        if row.batch_per_step % row.samples:
            raise AutoDDLError(
                f"row {row.id}: got a batch of {row.batch_per_step}; allowed are multiples of "
                f"{row.samples}, a micro-batch of all data-parallel groups"
            )
        return row

    @property
    def degrees(self) -> Degrees:
        """Return the degrees of parallelism, and the devices."""
        return Degrees(self.dp, self.tp, self.pp, self.nodes, self.gpus_per_node)

    @property
    def samples(self) -> int:
        """Return the samples of a micro-batch of all data-parallel groups."""
        return self.micro_batch * self.dp

    @property
    def micro_batches(self) -> int:
        """Return over how many micro-batches a step accumulates gradients."""
        return self.batch_per_step // self.samples

    @property
    def step_s(self) -> float:
        """Return the measured seconds of a step."""
        return self.batch_per_step / self.samples_per_s

    @property
    def is_oneflow(self) -> bool:
        """Tell whether the engine whose plans we predict was measured."""
        return self.engine.startswith(ONEFLOW)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a file of published measurements, by the names of its columns.

    Raises:
        AutoDDLError: it is not there.
    """
    file = folder / f"{name}.csv"
    if not file.exists():
        raise AutoDDLError(
            f"--data {folder}: no {file.name}; give the folder of published measurements"
        )
    frame = pd.read_csv(file)
    return [{str(name): value for name, value in line.items()} for line in frame.to_dict("records")]


def rows(folder: Path) -> list[PublishedRow]:
    """Return the rows of OneFlow and Megatron-LM."""
    return [PublishedRow.of(line) for line in lines(folder, "oneflow_gpu_clusters")]
