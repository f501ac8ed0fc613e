"""Readable names: of functions after their modules, of values after modules and what ops compute.

Identifiers have ASCII letters, digits and "_" only, whatever a model calls its modules.

Example: function_name("encoder.blocks.3") is "block"; identifier("lambda") is "lambda_".
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence
from itertools import chain, count

from autoddl.sbp.program import Op
from autoddl.sbp.program.blocks import is_layer
from autoddl.sbp.state import NdSbp

STREAM = ("x", "h", "y", "z")  # what flows from layer to layer has no name of its own
RESERVED = frozenset({"flow", "np", "p", "params", "part", "self", "B", "P", "S", "F", "i"})

_BOXED = {
    ("S", "B"): "gathered", ("P", "B"): "reduced", ("P", "S"): "scattered", ("S", "S"): "exchanged",
    ("B", "S"): "sliced",
}  # fmt: skip


def identifier(text: str) -> str:
    """Return text as a Python name, of ASCII signs, that hides no builtin."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    if not name or name[0].isdigit():
        name = f"x{name}"
    taken = keyword.iskeyword(name) or hasattr(builtins, name) or name in RESERVED
    return f"{name}_" if taken or name in ("l", "O", "I") else name


def last_word(module: str) -> str:
    """Return the last part of a module's path if that is a word, "" if it is a number."""
    word = module.rpartition(".")[2]
    return "" if word.isdigit() or not word else identifier(word)


def function_name(module: str, ops: Sequence[Op], parts: int = 1) -> str:
    """Return a module's function: "blocks.3" is block, "down.0" down_layer, a LayerNorm layer_norm.

    With more `parts` the modules around it come first: encoder_block.
    """
    kinds = {op.type for op in ops}
    if len(ops) <= 12 and "rsqrt" in kinds and "broadcast_mul" in kinds:
        own = "layer_norm" if "var" in kinds else "rms_norm"
    else:
        words = [word for word in module.split(".") if not word.isdigit()]
        own = words[-1] if words else "layers"
        if is_layer(module):
            singular = re.sub(r"(?<=[^s])s$", "", own)
            own = singular if singular != own else f"{own}_layer"
    around = [word for word in module.split(".")[:-1] if not word.isdigit()]
    if around and own.startswith(re.sub("s$", "", around[-1])):
        around.pop()
    return identifier("_".join([*around[-parts + 1 :], own] if parts > 1 else [own]))


def boxed_name(name: str, source: NdSbp, target: NdSbp) -> str:
    """Return the name of a value in another state, beside the value itself: x_gathered."""
    changed = [(a.kind, b.kind) for a, b in zip(source, target, strict=True) if a != b]
    return f"{name}_{_BOXED.get(changed[0], 'moved') if changed else 'moved'}"


def first_free(candidates: Iterable[str], taken: Iterable[str], joint: str = "") -> str:
    """Return the first name that is not taken; if all are, the first with a number behind it."""
    names, used = [c for c in candidates if c], set(taken)
    numbered = (f"{names[0]}{joint}{number}" for number in count(2))
    return next(name for name in chain(names, numbered) if name not in used)
