"""What plans are run on: testbeds, shares of cores for their ranks, and models small enough for them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from autoddl.sbp.mesh import Cluster, Level, Mesh

# Of a core, for its ranks; the rest is the kernel's, for links. Where ranks share cores each has a part
# of one, as fast whether others compute or wait, as a device is.
SHARE = 0.9


def core_share(ranks: int, cores: int = 0) -> str | None:
    """Return the share of a core that each rank gets, None where each has a core of its own.

    The cores are by default those that there are.
    """
    cores = cores or len(os.sched_getaffinity(0))
    return f"{SHARE / math.ceil(ranks / cores):.3g}" if ranks > cores else None


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
    def count(self) -> int:
        """Return how many ranks there are."""
        return self.nodes * self.ranks

    @property
    def mesh(self) -> Mesh:
        """Return the mesh of all ranks: one axis per level of more than one device."""
        return Mesh.parse("".join(f"[{level.name} {level.size}]" for level in self._levels))

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that the testbed is."""
        if not self.kinds:
            return Cluster(self._levels)
        return Cluster.parse(" + ".join(f"1*{kind}x{self.ranks}" for kind in self.kinds))

    @property
    def _levels(self) -> tuple[Level, ...]:
        levels = Level("node", self.nodes), Level("gpu", self.ranks)
        return tuple(level for level in levels if level.size > 1)


GPT: dict[str, Any] = {
    "layers": 2, "width": 256, "heads": 8, "sequence": 64, "vocabulary": 256, "batch": 16,
}  # fmt: skip
VGG13: dict[str, Any] = {
    "image": 32, "classes": 128, "channel_scale": 1 / 4, "dense": 1024, "batch": 32,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "vgg13": VGG13,
    "bert_moe": {
        "layers": 1, "width": 256, "heads": 8, "sequence": 32, "vocabulary": 512, "batch": 16,
        "experts": 8,
    },
}  # fmt: skip
# By studies; a multi-layer perceptron whose pairs of layers sum up over links.
PAIRED: dict[str, dict[str, Any]] = {
    "mlp": {"widths": (512, *(2048, 512) * 4), "batch": 512}, "gpt": GPT,
    "bert_moe": MODELS["bert_moe"],
}  # fmt: skip
STAGED: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 4, "width": 256, "heads": 8, "sequence": 32, "vocabulary": 512, "batch": 16,
    },
    "mlp": {"widths": [256, *([1024, 512] * 6), 256], "batch": 256},
    "vgg13": VGG13,
}  # fmt: skip
# Steps of a second: a share of a core comes in portions of 10 ms, of which rests of some are lost.
UNLIKE: dict[str, dict[str, Any]] = {
    "gpt": {
        "layers": 12, "width": 192, "heads": 6, "sequence": 64, "vocabulary": 512, "batch": 8,
    },
    # Half of the work is in the wide blocks, which have 94 % of the parameters.
    "transgan": {
        "depths": (6, 0, 6), "kept": 1, "width": 256, "heads": 4, "side": 4, "window": 8,
        "latent": 64, "batch": 16,
    },
}  # fmt: skip
