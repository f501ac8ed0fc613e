"""Why a tensor changes its state: the comment beside every redistribution.

Example: "(S0, P) → (S0, B) for norm: all-reduce over axis 1, 1.0 MiB".
"""

from __future__ import annotations

from autoddl.codegen.forward.section import Section, Value
from autoddl.sbp.boxing import boxing
from autoddl.sbp.program.blocks import is_layer
from autoddl.sbp.state import NdSbp
from autoddl.units import bytes_text

_KINDS = {
    ("P", "B"): "all-reduce", ("S", "B"): "all-gather", ("P", "S"): "reduce-scatter",
    ("S", "S"): "all-to-all", ("B", "S"): "slice", ("B", "P"): "keep on one", ("S", "P"): "pad",
}  # fmt: skip
MAX_READERS = 2
_WORDS = {  # what is read for, where no module's name says it
    **dict.fromkeys(("broadcast_add", "bias_add"), "the bias"),
    **dict.fromkeys(("matmul", "broadcast_matmul", "batch_matmul"), "the product"),
    **dict.fromkeys(("conv2d", "deconv2d"), "the convolution"),
    **dict.fromkeys(("reduce_sum", "add_n"), "the sum"),
    **dict.fromkeys(("scalar_mul", "scalar_div", "broadcast_div"), "the mean"),
    "var": "the variance", "nll": "the losses", "normalization": "the statistics",
}  # fmt: skip


def reason(section: Section, scope: str, value: Value, before: NdSbp, after: NdSbp) -> str:
    """Return "(S0, P) → (S0, B) for norm: all-reduce over axis 1, 1.0 MiB"."""
    tensor = section.program.tensor[value.tensor]
    mesh = section.mesh.shape
    axes = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    kinds = list(dict.fromkeys(_KINDS[before[i].kind, after[i].kind] for i in axes))
    if section.is_grouped(value) and "all-gather" in kinds:
        kinds[kinds.index("all-gather")] = "all-gather, grouped"
    over = ""
    if len(mesh) > 1:
        over = f" over ax{'i' if len(axes) == 1 else 'e'}s {' and '.join(map(str, axes))}"
    found = boxing(before, after, tensor.shape, mesh, uneven=True)
    size = ""
    if found is not None and kinds != ["slice"]:
        size = f", {bytes_text(found.elements * tensor.item_bytes)}"
    readers = _readers(section, scope, value)
    return f"{before} → {after}{readers}: {' and '.join(kinds)}{over}{size}"


def _readers(section: Section, scope: str, value: Value) -> str:
    """Return for whom the boxing is done: " for fc1, fc2"."""
    waiting, words = [value], []
    while waiting:
        found = waiting.pop()
        waiting += section.boxed.get(found, ())
        for op in section.readers.get(found, ()):
            module = op.module[len(scope) + 1 :] if scope else op.module.partition(".")[2]
            maker = section.made_by.get(value.tensor)
            beside = maker is not None and maker.module == op.module
            own = _WORDS.get(op.type, op.type)
            numbered = is_layer(module)
            words.append(own if beside or numbered or not module or op.module == scope else module)
    names = list(dict.fromkeys(words))
    if not names:
        return " for the result"
    return f" for {', '.join(names[:MAX_READERS])}{', …' if len(names) > MAX_READERS else ''}"
