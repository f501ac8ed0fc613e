"""Signatures in words that people use: what each mesh axis cuts of an op, and where its weight lies.

matmul: (S0, B) × (B, S0) → (S0, S1), of a parameter that is kept as (B, S0): batch over nodes, columns of
the weight over GPUs; weight a copy on each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.registry import IndexMap, OpView, find
from autoddl.sbp.state import B, NdSbp

_NAMES = {"gpu": "GPU"}  # of levels, as people write them


@dataclass(frozen=True)
class Words:
    """What an op does over the mesh, as phrases in order; `axes` tell what each one does."""

    axes: tuple[str, ...]
    phrases: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.phrases)


def axis_names(mesh: Mesh) -> tuple[str, ...]:
    """Return what one unit of each axis is called: "node", "GPU"; of several of a level which one."""
    levels = [axis.level for axis in mesh.axes]
    found = []
    for number, level in enumerate(levels):
        turn = f" (axis {number + 1})" if levels.count(level) > 1 else ""
        found.append(_NAMES.get(level, level) + turn)
    return tuple(found)


def plural(name: str) -> str:
    """Return the plural of an axis's name: "nodes", "GPUs (axis 2)"."""
    first, space, rest = name.partition(" ")
    return f"{first}s{space}{rest}"


def weight_of(program: Program, op: Op) -> Mapping[str, str]:
    """Return the parameters that an op reads, by operand, also where they are cast on the way."""
    found = {}
    for operand, tensor in op.inputs:
        while tensor in program.producer and len(program.producer[tensor].inputs) == 1:
            tensor = program.producer[tensor].inputs[0][1]
        if tensor in program.parameter:
            found[operand] = tensor
    return found


def words_of(
    program: Program, op: Op, signature: NdSignature, mesh: Mesh, kept: Mapping[str, NdSbp]
) -> Words:
    """Return what an op does under a signature; `kept` has the states of parameters between steps."""
    names, weights = axis_names(mesh), weight_of(program, op)
    live = [n for n, size in enumerate(mesh.shape) if size > 1]
    does = {n: _on_axis(program, op, signature, weights, n) for n in live}
    return Words(
        tuple(does.get(n, "") for n in range(mesh.ndim)),
        (_spread(does, names), *_weights(signature, weights, kept, names, live),
         *_sums(op, signature, names, live)),
    )  # fmt: skip


def _spread(does: Mapping[int, str], names: Sequence[str]) -> str:
    """Return which axis cuts what; "" is for axes that repeat the work."""
    by_part: dict[str, list[str]] = {}
    for axis, part in does.items():
        by_part.setdefault(part, []).append(names[axis])
    cut = [f"{part} over {_and(map(plural, on))}" for part, on in by_part.items() if part]
    if not cut:
        return "all of it on every device"
    if "" in by_part:
        cut.append(f"the same on {_and(f'each {name}' for name in by_part[''])}")
    return ", ".join(cut)


def _and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _on_axis(
    program: Program, op: Op, signature: NdSignature, weights: Mapping[str, str], axis: int
) -> str:
    """Return what an axis cuts of an op, "" where it cuts nothing."""
    cut = {o: signature[o][axis].dim for o, _ in op.operands if signature[o][axis].is_split}
    sums = [o for o, _ in op.outputs if signature[o][axis].is_partial]
    if not cut:
        passed = any(signature[o][axis].is_partial for o, _ in op.inputs)
        return "parts of sums" if sums or passed else ""
    rule = find(op.type)
    imap = rule.indices(OpView.of(op, program.shapes(op))) if rule is not None else None
    of_weight = [o for o in cut if o in weights]
    if of_weight:
        return _of_weight(op, imap, of_weight[0], cut, bool(sums))
    activations = [o for o in cut if o not in weights]
    first = activations[0]
    if cut[first] == 0:
        return "batch" if _is_batch(program, op, first) else f"dim 0 of {first}"
    summed = " (summed)" if sums else ""
    return f"dim {cut[first]} of the activations{summed}"


def _is_batch(program: Program, op: Op, operand: str) -> bool:
    """Tell whether dim 0 of an operand goes along the batch: it is as long, or a multiple of it."""
    sizes = {program.tensor[name].shape[0] for name in program.inputs if program.tensor[name].shape}
    length = program.tensor[dict(op.operands)[operand]].shape[0]
    return any(size and length % size == 0 for size in sizes)


def _of_weight(
    op: Op, imap: IndexMap | None, operand: str, cut: Mapping[str, int], sums: bool
) -> str:
    """Return what an axis cuts of an op's weight: what it adds up over are its rows."""
    rule = find(op.type)
    family = rule.family if rule is not None else ""
    if imap is None or family not in ("matmul", "conv", "embedding"):
        return "entries of the weight"
    rows, columns = {
        "matmul": ("rows", "columns"),
        "conv": ("input channels", "output channels"),
        "embedding": ("rows", "columns"),
    }[family]
    return f"{rows if sums else columns} of the weight"


def _weights(
    signature: NdSignature,
    weights: Mapping[str, str],
    kept: Mapping[str, NdSbp],
    names: Sequence[str],
    live: Sequence[int],
) -> list[str]:
    """Return where the weight is: as copies, or in parts that are gathered when they are used."""
    if not weights:
        return []
    operand, tensor = next(iter(weights.items()))
    used, state = signature[operand], kept.get(tensor, signature[operand])
    copies = [names[n] for n in live if state[n] == B]
    parts = [names[n] for n in live if state[n].is_split and used[n] == B]
    found = []
    if copies:
        every = len(copies) == len(live)
        on = "every device" if every else _and(f"each {name}" for name in copies)
        found.append(f"a copy on {on}")
    if parts:
        found.append(f"kept in parts over {_and(map(plural, parts))}, gathered for use")
    return [f"weight {' and '.join(found)}"] if found else []


def _sums(op: Op, signature: NdSignature, names: Sequence[str], live: Sequence[int]) -> list[str]:
    """Return over which axes what it makes has to be added up yet."""
    over = [names[n] for n in live if any(signature[o][n].is_partial for o, _ in op.outputs)]
    return [f"results to be added up over {_and(map(plural, over))}"] if over else []
