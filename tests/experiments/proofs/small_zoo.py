"""Models of the zoo as small as they can be with all of its types of ops."""

from __future__ import annotations

from typing import Any

from experiments.models import LAYERED, ZOO

_SIZES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "resnet50": {"blocks": (1,)},
    "unet": {"depth": 1},
    "llama": {},
    "dlrm": {"tables": (16, 32)},
    "bert_moe": {"kind": "switch"},
    "mobilenet": {"stages": ((2, 8, 1, 1),)},
    "bert_dropout": {},
    "vit_drop_path": {},
}
SMALL_ZOO = {
    name: (file, {**given, **_SIZES[name]})
    for name, (file, given) in (ZOO | LAYERED).items()
    if name in _SIZES
}
