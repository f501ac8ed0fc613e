"""The model zoo: each file has `build(**sizes) -> (graph, inputs)` for an unmodified nn.Graph.

`SIZES` of a file names sizes: "toy" for tests, the others as in the papers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from autoddl.errors import AutoDDLError

# Name of the zoo's model: its file here, and the arguments that tell it from others of that file.
ZOO: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "alexnet": ("alexnet", {}),
    "vgg13": ("vgg", {"depth": 13}),
    "vgg19": ("vgg", {"depth": 19}),
    "resnet50": ("resnet", {}),
    "wide_resnet": ("resnet", {"width_factor": 2}),
    "unet": ("unet", {}),
    "gpt": ("gpt", {}),
    "bert": ("bert", {}),
    "dnabert": ("dnabert", {}),
    "vit": ("vit", {}),
    "transgan": ("transgan", {}),
    "t5": ("t5", {}),
    "llama": ("llama", {}),
    "dlrm": ("dlrm", {}),
    "bert_moe": ("bert_moe", {"kind": "sgmoe"}),
    "vit_moe": ("vit_moe", {"kind": "switch"}),
}
# Models of the zoo with what experts put inside a layer: BatchNorm, dropout in every place, stochastic
# depth. Their parity is proven beside the zoo's.
LAYERED: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet18": ("resnet", {"basic": True}),
    "unet_norm": ("unet", {"norm": True}),
    "mobilenet": ("mobilenet", {}),
    "bert_dropout": ("bert", {"dropout": 0.1}),
    "gpt_dropout": ("gpt", {"dropout": 0.1}),
    "vit_drop_path": ("vit", {"layers": 2, "drop_path": 0.3}),
}
# Models whose forward pass is no chain of layers, for stages on branches.
BRANCHED: dict[str, tuple[str, dict[str, Any]]] = {"two_towers": ("two_towers", {})}
# Models that are priced, not run: their kernels are CUDA's, or tables are updated by rows.
PRICED: dict[str, tuple[str, dict[str, Any]]] = {
    "fused_gpt": ("fused_transformer", {}),
    "fused_bert": ("fused_transformer", {"encoder": True}),
    "wide_and_deep": ("wide_and_deep", {}),
}


def build(name: str, size: str = "toy", **overrides: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return (graph, inputs) of a model of the zoo at a named size.

    Raises:
        AutoDDLError: no such model, or no such size of it.
    """
    known = {**ZOO, **LAYERED, **BRANCHED, **PRICED}
    if name not in known:
        raise AutoDDLError(f"model {name!r}: the zoo has {', '.join(known)}")
    file, arguments = known[name]
    module = import_module(f"experiments.models.{file}")
    if size not in module.SIZES:
        raise AutoDDLError(f"model {name}: no size {size!r}; it has {', '.join(module.SIZES)}")
    graph, inputs = module.build(**{**module.SIZES[size], **arguments, **overrides})
    return graph, inputs
