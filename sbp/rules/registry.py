"""What a rule is: the index map of an op, from which its one-axis SBP signatures follow.

A rule says which iteration indices an op has and which operand dims they run along, as in einsum.
Cutting one index over a mesh axis makes S of every operand that has it and B of every input that
lacks it; an output that lacks it becomes P if the op sums over the index (P(max), P(min) if it takes
the largest or smallest). An op that is linear in a set of inputs also passes P through.
All-broadcast is always valid and implied.

Rules say what is right; what an engine refuses of it is in its model (`autoddl.engine.model`), by the
labels that signatures carry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.errors import RuleError
from autoddl.sbp.program import Op
from autoddl.sbp.state import OWN, P_MAX, P_MIN, B, P, S, Sbp

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Signature = Mapping[str, Sbp]
Dims = tuple[str | None, ...]


@dataclass(frozen=True)
class OpView:
    """An op with the shape of every operand: the logical shapes, or one device's local ones."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shape: Mapping[str, Shape]
    attr: Mapping[str, Any]

    @classmethod
    def of(cls, op: Op, shapes: Mapping[str, Shape]) -> OpView:
        """View `op` with these operand shapes."""
        return cls(
            op.type,
            tuple(name for name, _ in op.inputs),
            tuple(name for name, _ in op.outputs),
            shapes,
            op.attr,
        )


@dataclass(frozen=True)
class LocalOp:
    """What a NumPy reference gets: one device's inputs, and where its shards start.

    `start` gives for every operand the offset of the local shard in each dim of the logical tensor;
    `view.shape` holds local shapes (outputs included).
    """

    view: OpView
    inputs: Mapping[str, Array]
    start: Mapping[str, Shape]


@dataclass(frozen=True)
class Linear:
    """Inputs in which an op is linear together: P on all of them with B on the rest is right.

    `outputs` become P, the others are B; None stands for all outputs. No inputs: the outputs are 0.
    """

    inputs: frozenset[str]
    outputs: frozenset[str] | None = None

    @property
    def label(self) -> str:
        """Return the label of the signature that follows, e.g. "P a_0 b_0 -> out_0"."""
        text = " ".join(("P", *sorted(self.inputs)))
        return text if self.outputs is None else f"{text} -> {' '.join(sorted(self.outputs))}"


def linear(text: str) -> Linear:
    """Read "a_0 b_0" (all outputs become P) or "a_0 -> out_0" (just these)."""
    inputs, arrow, outputs = text.partition("->")
    return Linear(frozenset(inputs.split()), frozenset(outputs.split()) if arrow else None)


@dataclass(frozen=True)
class IndexMap:
    """Iteration indices of an op.

    `dims` names the index that runs along each dim of each operand (None: the dim can't be cut).
    `summed` are the indices that the op adds up, `maxed` and `minned` those over which it takes the
    largest or smallest. Each entry of `linear` gives one signature that passes P on. `shape_only`
    inputs give just their shape, so where they would be B they may also be P. Cutting an index in
    `approximate` gives other numbers than one device does; it maps to the permission that a user has
    to give for it.

    `added` inputs (a fused bias) are added once to the sums: where a cut index that they lack is
    summed they are P, else every device would add them. `whole` outputs that lack a cut index,
    which the op does not sum either, do not depend on it and stay B. `own` operands that lack an
    approximate index that is cut differ between devices (OWN): every device has its own.

    A cut may have a stride (`strided_cuts`), the same on all operands of one length, but for the indices
    `in_order`, along which the op looks at where elements lie. Operands that are `flat` have the same
    elements in one order, whatever their shapes (a reshape), so a cut of one is a cut of all. `pieces`
    are indices that run along pieces of different length, and a length that divides all their ends (of
    slices, and of what is concatenated): only what a cut does within this length is the same on all.

    Index names are labels, too: give two situations that an engine treats differently two names.
    """

    dims: Mapping[str, Dims]
    summed: frozenset[str] = frozenset()
    linear: tuple[Linear, ...] = ()
    shape_only: frozenset[str] = frozenset()
    maxed: frozenset[str] = frozenset()
    minned: frozenset[str] = frozenset()
    approximate: Mapping[str, str] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    in_order: frozenset[str] = frozenset()
    flat: frozenset[str] = frozenset()
    pieces: Mapping[str, int] = field(default_factory=dict)


def index_map(
    text: str,
    *,
    summed: str = "",
    linear: Sequence[str] = (),
    shape_only: Sequence[str] = (),
    maxed: str = "",
    minned: str = "",
) -> IndexMap:
    """Read "a_0: i k, b_0: k j -> out_0: i j"; "." stands for a dim that can't be cut.

    `summed`, `maxed` and `minned` list indices separated by spaces; each entry of `linear` lists
    operands as the function `linear` reads them.

    Raises:
        RuleError: the text does not parse.
    """
    dims: dict[str, Dims] = {}
    for part in text.replace("->", ",").split(","):
        name, colon, indices = part.partition(":")
        if not colon:
            raise RuleError(f"index map {text!r}: {part!r} lacks ':'; write 'operand: i j'")
        dims[name.strip()] = tuple(None if i == "." else i for i in indices.split())
    return IndexMap(
        dims,
        frozenset(summed.split()),
        tuple(_linear(group) for group in linear),
        frozenset(shape_only),
        frozenset(maxed.split()),
        frozenset(minned.split()),
    )


_linear = linear


Sampler = Callable[[OpView, str, np.random.Generator], Array]


def output_elements(view: OpView) -> float:
    """Count one flop for every element of the first output (of the first input without outputs)."""
    return float(np.prod(view.shape[(view.outputs or view.inputs)[0]], dtype=float))


@dataclass(frozen=True)
class OpRule:
    """All that the planner knows of an op type.

    `indices` maps an op with its logical shapes to its index map; `reference` computes the outputs
    of one device in NumPy; `flops` counts floating point operations from (local) shapes; `family`
    names the efficiency class of the compute model. `samplers` draw test values for the operands
    that can't take any real number (indices, divisors); they get the op, the operand and an rng.
    `writes` names the inputs that the op updates in place (running statistics).
    """

    op_type: str
    indices: Callable[[OpView], IndexMap]
    reference: Callable[[LocalOp], dict[str, Array]]
    flops: Callable[[OpView], float] = output_elements
    family: str = "elementwise"
    samplers: Mapping[str, Sampler] = field(default_factory=dict, compare=False)
    notes: str = field(default="", compare=False)
    writes: frozenset[str] = frozenset()


_REGISTRY: dict[str, OpRule] = {}
_BUILT_IN: dict[str, OpRule] = {}


def seal() -> None:
    """Take note of the rules that come with autoddl; called once they are all registered."""
    _BUILT_IN.update(_REGISTRY)


def is_built_in(op_type: str) -> bool:
    """Tell whether the rule of an op type came with autoddl, so that engines' tables know it."""
    return op_type in _REGISTRY and _REGISTRY[op_type] is _BUILT_IN.get(op_type)


def register(*rules: OpRule) -> None:
    """Add rules to the registry; a later rule for the same op type replaces the earlier one."""
    for rule in rules:
        _REGISTRY[rule.op_type] = rule


def find(op_type: str) -> OpRule | None:
    """Return the rule of an op type, or None."""
    return _REGISTRY.get(op_type)


def written(op: Op) -> frozenset[str]:
    """Return the inputs that an op updates in place; not the statistics that are given to it."""
    rule = find(op.type)
    if rule is None or not op.attr.get("training", True):
        return frozenset()
    return rule.writes & {operand for operand, _ in op.inputs}


def all_rules() -> tuple[OpRule, ...]:
    """Return every registered rule, sorted by op type."""
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


def signatures(
    view: OpView, *, allow: frozenset[str] = frozenset(), refused: frozenset[str] = frozenset()
) -> tuple[Signature, ...]:
    """Return the valid one-axis signatures of an op, all-broadcast first.

    An op type without a rule has the all-broadcast signature only. Whether a signature divides
    evenly depends on the mesh and is the caller's check. `allow` names the approximations that are
    permitted, `refused` labels that are left out (see `labelled`).

    Raises:
        RuleError: the index map does not fit the operands.
    """
    found = labelled(view, allow=allow)
    everything = view.inputs + view.outputs
    kept = [s for label, s in found.items() if not is_refused(label, refused)]
    return tuple({tuple(s[name] for name in everything): s for s in kept}.values())


def labelled(view: OpView, *, allow: frozenset[str] = frozenset()) -> dict[str, Signature]:
    """Return the valid one-axis signatures of an op with what they come from.

    Labels are "B" (all-broadcast), "cut i" for an index i, "P a_0 b_0" for linear inputs, and any of
    these with " + P like_0" for inputs of which only the shape is read.
    """
    everything = view.inputs + view.outputs
    found: dict[str, Signature] = {BROADCAST: dict.fromkeys(everything, B)}
    rule = find(view.type)
    if rule is None:
        return found
    imap = rule.indices(view)
    check_fits(view, imap)
    names = {i for dims in imap.dims.values() for i in dims if i is not None}
    for index in sorted(names - imap.pieces.keys()):
        cut = cut_along(view, imap, index)
        if cut is not None and imap.approximate.get(index, "") in {"", *allow}:
            found[f"cut {index}"] = cut
    for group in imap.linear:
        outputs = view.outputs if group.outputs is None else group.outputs
        partial = {name: P if name in group.inputs or name in outputs else B for name in everything}
        found[group.label] = partial
    for label, signature in tuple(found.items()):
        for name in sorted(imap.shape_only):
            if signature[name] == B:
                found[f"{label} + P {name}"] = {**signature, name: P}
    return found


BROADCAST = "B"


def is_refused(label: str, refused: frozenset[str]) -> bool:
    """Tell whether a label, or a part that it is put together from, is among the refused ones."""
    return any(part in refused for part in _parts(label))


def _parts(label: str) -> tuple[str, ...]:
    """Return a label and the parts that it is put together from."""
    return (label, *label.split(" + ")) if " + " in label else (label,)


def cut_along(view: OpView, imap: IndexMap, index: str) -> Signature | None:
    """Return the signature that cuts an index, None where an output that lacks it has no state then."""
    signature = {}
    for name in view.inputs + view.outputs:
        dims = imap.dims[name]
        if index in dims:
            signature[name] = S(dims.index(index))
        elif name in imap.own and index in imap.approximate:
            signature[name] = OWN
        elif name not in view.outputs:
            signature[name] = P if name in imap.added and index in imap.summed else B
        elif (partial := _reduced(imap, index)) is not None:
            signature[name] = partial
        elif name in imap.whole:
            signature[name] = B
        else:
            return None
    return signature


def _reduced(imap: IndexMap, index: str) -> Sbp | None:
    """Return what an output becomes where the op reduces over a cut index."""
    if index in imap.summed:
        return P
    if index in imap.maxed:
        return P_MAX
    return P_MIN if index in imap.minned else None


def check_fits(view: OpView, imap: IndexMap) -> None:
    """Raise RuleError where a map does not name the dims of every operand."""
    for name in view.inputs + view.outputs:
        if name not in imap.dims or len(imap.dims[name]) != len(view.shape[name]):
            raise RuleError(
                f"rule of {view.type}: operand {name} has shape {view.shape[name]}, the index map "
                f"gives {imap.dims.get(name)}; name one index per dim"
            )
