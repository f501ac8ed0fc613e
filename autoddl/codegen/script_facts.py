"""What a script says of inputs and parameters, read from the program.

Example: what a gather reads as indices is called ids, and its whole numbers are below the table's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoddl.codegen.source.identifiers import first_free, identifier, last_word
from autoddl.sbp.program import Op, Program

_SHAPE_ONLY = ("reshape", "transpose", "cast", "slice", "expand", "expand_dims", "squeeze")
_MEANINGS = {  # (op type, operand): what an input is that is read there
    ("gather", "indices"): "ids", ("embedding", "indices"): "ids", ("nll", "target"): "labels",
    ("conv2d", "in"): "images", ("binary_cross_entropy_with_logits", "target"): "targets",
}  # fmt: skip


@dataclass(frozen=True)
class Input:
    """An input of the graph: its name in the script, and the bound of its values if they are whole."""

    tensor: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    below: int | None


def top_module(program: Program) -> str:
    """Return the graph's attribute that holds the model, "" if there are several."""
    names = [p.tensor for p in program.parameters]
    tops = {name.partition(".")[0] for name in names}
    return tops.pop() if len(tops) == 1 and all("." in name for name in names) else ""


def inputs_of(program: Program) -> tuple[Input, ...]:
    """Return the inputs with names that tell what they are: ids, labels, images, x, target."""
    found: list[Input] = []
    for tensor in program.inputs:
        facts = program.tensor[tensor]
        whole = facts.dtype.startswith(("int", "uint", "bool"))
        name, bound = "", None
        for op, operand in _readers(program, tensor):
            name = name or _meaning(op, operand)
            bound = _smaller(bound, _bound(program, op, operand))
        taken = {item.name for item in found}
        name = _distinct(name or "x", program, tensor, taken)
        found.append(Input(tensor, name, facts.shape, facts.dtype, (bound or 2) if whole else None))
    return tuple(found)


def _readers(program: Program, tensor: str) -> list[tuple[Op, str]]:
    """Return the forward ops that read a tensor, also through ops that only change its shape."""
    found: list[tuple[Op, str]] = []
    for op, operand in program.consumers.get(tensor, ()):
        if op.phase != "forward":
            continue
        if op.type in _SHAPE_ONLY:
            found += _readers(program, op.outputs[0][1])
        else:
            found.append((op, operand.rpartition("_")[0]))
    return found


def _meaning(op: Op, operand: str) -> str:
    if (op.type, operand) in _MEANINGS:
        return _MEANINGS[op.type, operand]
    return "target" if not op.module else ""


def _distinct(name: str, program: Program, tensor: str, taken: set[str]) -> str:
    words = [last_word(op.module) for op, _ in _readers(program, tensor)]
    return first_free([name, *(identifier(f"{word}_{name}") for word in words if word)], taken)


def _bound(program: Program, op: Op, operand: str) -> int | None:
    shapes = program.shapes(op)
    if (op.type, operand) == ("gather", "indices"):
        return shapes["in_0"][op.attr["axis"]]
    if (op.type, operand) == ("nll", "target"):
        return shapes["input_0"][-1]
    return None


def _smaller(a: int | None, b: int | None) -> int | None:
    known = [value for value in (a, b) if value is not None]
    return min(known) if known else None
