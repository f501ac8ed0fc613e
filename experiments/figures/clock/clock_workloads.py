"""What is run, fixed before anything is: models, sizes, nodes and ranks.

As in the paper VGG13 has 8 images for every device; the Transformer has as many layers as there are nodes
of one device. Tensors are far smaller, and so are the links, whose rate follows from what ranks compute
(link_rates).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TRANSFORMER = {"width": 256, "heads": 8, "sequence": 32, "vocabulary": 512, "batch": 16}
_VGG13 = {"image": 32, "classes": 128, "channel_scale": 1 / 4, "dense": 1024}


@dataclass(frozen=True)
class ClockWorkload:
    """A model of the zoo with its sizes on nodes of some ranks; `figure` is where it is drawn.

    Those that are `quick` are run where there is little time.
    """

    figure: str
    name: str
    model: str
    nodes: int
    ranks: int
    sizes: Mapping[str, Any]
    quick: bool = False

    @property
    def key(self) -> str:
        """Return its name among all of them, also that of its folder."""
        return f"{self.name}-{self.shape}"

    @property
    def shape(self) -> str:
        """Return its testbed's nodes and ranks on each, as 2x4."""
        return f"{self.nodes}x{self.ranks}"


WORKLOADS = [
    *(
        ClockWorkload("fig09", "vgg13", "vgg13", n, 1, {**_VGG13, "batch": 8 * n})
        for n in (2, 4, 8)
    ),
    *(
        ClockWorkload("fig09", "transformer", "gpt", n, 1, {**_TRANSFORMER, "layers": n})
        for n in (2, 4, 8)
    ),
    *(
        ClockWorkload(
            "fig10", "vgg13", "vgg13", 2, n, {**_VGG13, "batch": 16 * n}, quick=n == 2
        )
        for n in (2, 4)
    ),
    *(
        ClockWorkload(
            "fig10", "transformer", "gpt", 2, n, {**_TRANSFORMER, "layers": 4}
        )
        for n in (2, 4)
    ),
    ClockWorkload(
        "moe", "bert_sgmoe", "bert_moe", 2, 2,
        {**_TRANSFORMER, "layers": 1, "experts": 8}, quick=True,
    ),
    ClockWorkload(
        "moe", "vit_switch", "vit_moe", 2, 2,
        {
            "layers": 2, "width": 256, "heads": 8, "image": 24, "patch": 4, "classes": 128,
            "batch": 16, "experts": 8, "every": 2,
        },
    ),
    ClockWorkload(
        "zoo", "resnet50", "resnet50", 2, 2,
        {"blocks": (3, 4, 6, 3), "image": 32, "channels": 16, "classes": 128, "batch": 32},
    ),
    ClockWorkload(
        "zoo", "unet", "unet", 2, 2, {"depth": 3, "image": 32, "channels": 32, "batch": 8}
    ),
    ClockWorkload(
        "zoo", "t5", "t5", 2, 2,
        {**_TRANSFORMER, "layers": 2, "head_size": 32, "inner": 1024, "target_sequence": 32},
    ),
    ClockWorkload(
        "zoo", "dlrm", "dlrm", 2, 2,
        {
            "tables": (20000, 10000, 5000, 40000, 2000, 1000), "look_ups": 2, "dense": 16,
            "bottom": (256,), "width": 64, "top": (512, 256), "batch": 512,
        },
    ),
    ClockWorkload(
        "zoo", "llama", "llama", 2, 2,
        {**_TRANSFORMER, "layers": 2, "groups": 4, "inner": 704},
    ),
]  # fmt: skip
NAMES = tuple(dict.fromkeys(one.name for one in WORKLOADS))
SHAPES = tuple(dict.fromkeys(one.shape for one in WORKLOADS))
PACE = "vgg13"  # the workload whose data parallelism tells the rate of a testbed's links
