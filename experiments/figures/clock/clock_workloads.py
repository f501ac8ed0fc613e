"""What is run, fixed before anything is: models, sizes, testbeds, numbers of passes.

As in the paper VGG13 has 8 images for every device; the Transformer has as many layers as there are nodes
of one device. Tensors are far smaller, and so are the links: 200 Mbit/s between nodes, so that data
parallelism waits for them as it does at the paper's scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.fidelity.workload import Bed

RATE = "200mbit"
BEDS = {
    bed.name: bed
    for nodes, ranks in ((2, 1), (4, 1), (8, 1), (2, 2), (2, 4))
    for bed in [Bed(f"{nodes}x{ranks}-{RATE}", nodes, ranks, RATE)]
}
_TRANSFORMER = {"width": 256, "heads": 8, "sequence": 32, "vocabulary": 512, "batch": 16}
_VGG13 = {"image": 32, "classes": 128, "channel_scale": 1 / 4, "dense": 1024}
PASSES, STEPS = 5, 20  # of each plan, and timed steps of each pass at least
QUICK_PASSES, QUICK_STEPS = 2, 8


@dataclass(frozen=True)
class ClockWorkload:
    """A model of the zoo with its sizes, on a testbed; `figure` is where it is drawn.

    Those that are `quick` are run where there is little time.
    """

    figure: str
    name: str
    model: str
    bed: Bed
    sizes: Mapping[str, Any]
    quick: bool = False

    @property
    def key(self) -> str:
        """Return its name among all of them, also that of its folder."""
        return f"{self.name}-{self.bed.nodes}x{self.bed.ranks}"

    def facts(self) -> dict[str, Any]:
        """Return what is run, as JSON data."""
        found = {**asdict(self), "sizes": dict(self.sizes)}
        del found["quick"]
        return found


def _on(nodes: int, ranks: int) -> Bed:
    return BEDS[f"{nodes}x{ranks}-{RATE}"]


WORKLOADS = [
    *(
        ClockWorkload("fig09", "vgg13", "vgg13", _on(n, 1), {**_VGG13, "batch": 8 * n})
        for n in (2, 4, 8)
    ),
    *(
        ClockWorkload("fig09", "transformer", "gpt", _on(n, 1), {**_TRANSFORMER, "layers": n})
        for n in (2, 4, 8)
    ),
    *(
        ClockWorkload(
            "fig10", "vgg13", "vgg13", _on(2, n), {**_VGG13, "batch": 16 * n}, quick=n == 2
        )
        for n in (2, 4)
    ),
    *(
        ClockWorkload(
            "fig10", "transformer", "gpt", _on(2, n), {**_TRANSFORMER, "layers": 4}
        )
        for n in (2, 4)
    ),
    ClockWorkload(
        "moe", "bert_sgmoe", "bert_moe", _on(2, 2),
        {**_TRANSFORMER, "layers": 1, "experts": 8}, quick=True,
    ),
    ClockWorkload(
        "moe", "vit_switch", "vit_moe", _on(2, 2),
        {
            "layers": 2, "width": 256, "heads": 8, "image": 24, "patch": 4, "classes": 128,
            "batch": 16, "experts": 8, "every": 2,
        },
    ),
    ClockWorkload(
        "zoo", "resnet50", "resnet50", _on(2, 2),
        {"blocks": (3, 4, 6, 3), "image": 32, "channels": 16, "classes": 128, "batch": 32},
    ),
    ClockWorkload(
        "zoo", "unet", "unet", _on(2, 2), {"depth": 3, "image": 32, "channels": 32, "batch": 8}
    ),
    ClockWorkload(
        "zoo", "t5", "t5", _on(2, 2),
        {**_TRANSFORMER, "layers": 2, "head_size": 32, "inner": 1024, "target_sequence": 32},
    ),
    ClockWorkload(
        "zoo", "dlrm", "dlrm", _on(2, 2),
        {
            "tables": (20000, 10000, 5000, 40000, 2000, 1000), "look_ups": 2, "dense": 16,
            "bottom": (256,), "width": 64, "top": (512, 256), "batch": 512,
        },
    ),
    ClockWorkload(
        "zoo", "llama", "llama", _on(2, 2),
        {**_TRANSFORMER, "layers": 2, "groups": 4, "inner": 704},
    ),
]  # fmt: skip
FIGURES = tuple(dict.fromkeys(one.figure for one in WORKLOADS))
