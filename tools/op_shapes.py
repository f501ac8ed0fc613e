"""Write the ops that a GPU is timed with: `python tools/op_shapes.py OPS.json` (torch_ops.py times them).

They are those of models of the zoo, traced as for CUDA devices, in float32 and in mixed precision. None
of these models is one that docs/accuracy.md holds the predicted steps of a GPU against.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoddl.perfmodel.roofline import OpWork
from autoddl.sbp.program import Program
from experiments.lib.programs import captured

EACH = 24  # ops of a type and dtype at most, of all sizes
_TEXT: dict[str, Any] = {"heads": 16, "vocabulary": 16384, "layers": 1, "batch": 8}
MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt", {**_TEXT, "width": 2048, "sequence": 512, "optimizer": "adam"}),
    ("gpt", {**_TEXT, "width": 512, "sequence": 256}),
    ("bert", {**_TEXT, "width": 768, "heads": 12, "sequence": 512, "batch": 16}),
    ("t5", {**_TEXT, "width": 1024, "sequence": 512, "head_size": 64, "inner": 4096,
            "target_sequence": 512}),
    ("llama", {**_TEXT, "width": 4096, "sequence": 512, "groups": 8, "inner": 11008}),
    ("vgg19", {"image": 128, "classes": 1000, "channel_scale": 1, "dense": 4096, "batch": 32}),
    ("resnet50", {"image": 224, "channels": 64, "classes": 1000, "batch": 32,
                  "blocks": (3, 4, 6, 3)}),
    ("unet", {"depth": 4, "image": 256, "channels": 64, "batch": 4}),
    ("mlp", {"batch": 4096, "widths": (1024, 4096, 1024)}),
)  # fmt: skip
PRECISIONS = ("float32", "float16", "bfloat16")


def main(file: str) -> None:
    """Write the ops as JSON."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (model, sizes) in enumerate(MODELS):
            for precision in PRECISIONS:
                traced = Path(folder) / f"{number}-{precision}.json"
                program = captured(traced, model, "toy", precision, **sizes)
                for op in ops(program):
                    if precision != "bfloat16" or op["flops"] > op["moved_bytes"]:
                        found.setdefault(json.dumps(op, sort_keys=True), op)
    kept: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for op in sorted(found.values(), key=lambda op: op["moved_bytes"]):
        kept.setdefault((op["type"], op["dtype"]), []).append(op)
    spread = [own[int(i * len(own) / min(len(own), EACH))]
              for own in kept.values() for i in range(min(len(own), EACH))]  # fmt: skip
    Path(file).write_text(json.dumps(spread))


def ops(program: Program) -> Iterator[dict[str, Any]]:
    """Yield what each op of a program does, with its operands' shapes."""
    for op in program.ops:
        tensors = {operand: program.tensor[name] for operand, name in op.operands}
        work = OpWork.local(op, tensors, [tensor.shape for tensor in tensors.values()])
        inputs = {operand for operand, _ in op.inputs}
        yield {
            "type": op.type, "family": work.family, "variant": work.variant, "dtype": work.dtype,
            "flops": work.flops, "moved_bytes": work.moved_bytes,
            "operands": [(o, t.shape, t.dtype, o in inputs) for o, t in tensors.items()],
            "attr": dict(op.attr),
        }  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
