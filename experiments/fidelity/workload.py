"""What the experiment runs: testbeds, and models small enough for them. Plans are measured on both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoddl.sbp.mesh import Mesh


@dataclass(frozen=True)
class Bed:
    """Nodes × ranks on one machine; `rate` is that of each node's link, None for plain loopback.

    Of unlike nodes `cpu` and `rate` have a value for each, `kinds` the names.
    """

    name: str
    nodes: int
    ranks: int
    rate: str | None
    cpu: str | None = None
    kinds: tuple[str, ...] = ()

    @property
    def mesh(self) -> Mesh:
        """Return the mesh that the plans use: one axis per level of more than one device."""
        axes = (("node", self.nodes), ("gpu", self.ranks))
        return Mesh.parse("".join(f"[{level} {size}]" for level, size in axes if size > 1))


BEDS = {
    bed.name: bed
    for bed in (
        Bed("2x2-500mbit", 2, 2, "500mbit"),
        Bed("4x1-200mbit", 4, 1, "200mbit"),
        Bed("2x4-200mbit", 2, 4, "200mbit"),
        Bed("2x4-1gbit", 2, 4, "1gbit"),  # needs more than two cores to be steady
        Bed("2x2-2gbit", 2, 2, "2gbit"),
        Bed("loopback-4", 1, 4, None),
    )
}

MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 2, "width": 256, "heads": 8, "sequence": 64, "vocabulary": 256, "batch": 16,
    },
    "vgg13": {"image": 32, "classes": 128, "channel_scale": 1 / 4, "dense": 1024, "batch": 32},
    "bert_moe": {
        "layers": 1, "width": 256, "heads": 8, "sequence": 32, "vocabulary": 512, "batch": 16,
        "experts": 8,
    },
}  # fmt: skip
