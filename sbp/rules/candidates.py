"""Signatures on whole meshes: per-axis products of one-axis signatures that cut evenly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from autoddl.sbp.canonical import joined
from autoddl.sbp.rules.registry import OpView, Signature, signatures
from autoddl.sbp.shards import local_shape
from autoddl.sbp.shares import Cut, Cuts, places
from autoddl.sbp.state import NdSbp, Sbp, ordered, orders

NdSignature = Mapping[str, NdSbp]


def nd_signatures(
    view: OpView,
    mesh: Cuts,
    *,
    float_operands: frozenset[str] | None = None,
    refused: frozenset[str] = frozenset(),
    allow: frozenset[str] = frozenset(),
) -> tuple[NdSignature, ...]:
    """Return every valid signature of an op on a mesh with these cuts, all-broadcast first.

    `float_operands`, where given, are the only operands that may be P: a partial sum of integers
    (ids, labels) is never useful. `refused` has labels of signatures that are left out, since an engine
    can't execute them; `allow` names the approximations that are permitted.
    """
    one_axis = signatures(view, allow=allow, refused=refused)
    return nd_products(view, mesh, [one_axis] * len(mesh), float_operands=float_operands)


def nd_products(
    view: OpView,
    mesh: Cuts,
    one_axis: Sequence[Sequence[Signature]],
    *,
    float_operands: frozenset[str] | None = None,
) -> tuple[NdSignature, ...]:
    """Return the products of one signature per axis that cut every operand evenly.

    `one_axis` has the signatures of each axis, all-broadcast first, which is all that there is to an
    axis of one device; `float_operands` is as in `nd_signatures`. Where these have strides they say how
    an axis cuts alone.
    """
    usable = [
        [
            s
            for s in (entries if places(cut) > 1 else entries[:1])
            if float_operands is None
            or all(n in float_operands for n, x in s.items() if x.kind == "P")
        ]
        for entries, cut in zip(one_axis, mesh, strict=True)
    ]
    names, sizes = view.inputs + view.outputs, tuple(mesh)
    found: dict[tuple[NdSbp, ...], NdSignature] = {}
    for combo in itertools.product(*usable):
        states: dict[str, NdSbp] = {}
        for name in names:
            state = _even(view.shape[name], tuple([s[name] for s in combo]), sizes)
            if state is None:
                break
            states[name] = state
        else:
            found.setdefault(tuple(states.values()), states)
    return tuple(found.values())


@lru_cache(2**14)
def _even(shape: tuple[int, ...], sbps: tuple[Sbp, ...], mesh: tuple[Cut, ...]) -> NdSbp | None:
    """Return the state that is so on each axis, None where it does not cut evenly."""
    if any(sbp.stride is not None for sbp in sbps):
        return joined(sbps, shape, mesh)
    state = NdSbp(sbps)
    return None if local_shape(shape, state, mesh) is None else state


def in_any_order(found: Iterable[NdSignature], mesh: Cuts) -> tuple[NdSignature, ...]:
    """Return signatures with their axes in every order, which is one for all operands of an op.

    The signature of a mesh with its axes in another order is one of the mesh, too. With strides they
    stay in the order that they have.
    """
    every = orders(mesh)
    unique: dict[tuple[NdSbp, ...], NdSignature] = {}
    for signature in found:
        states_of = signature.values()
        twice = any(map(_cuts_twice, states_of)) and not any(map(_has_strides, states_of))
        for order in every if twice else every[:1]:
            states = {name: _turned(state, order) for name, state in signature.items()}
            unique.setdefault(tuple(states.values()), states)
    return tuple(unique.values())


_turned = lru_cache(2**17)(ordered)


def _cuts_twice(state: NdSbp) -> bool:
    cuts = [sbp.dim for sbp in state if sbp.is_split]
    return len(set(cuts)) < len(cuts)


def _has_strides(state: NdSbp) -> bool:
    return any(sbp.stride is not None or sbp.turn for sbp in state)
