"""Signatures on whole meshes: per-axis products of one-axis signatures that cut evenly."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from autoddl.sbp.rules.engines import refused
from autoddl.sbp.rules.registry import OpView, signatures
from autoddl.sbp.state import NdSbp, local_shape

NdSignature = Mapping[str, NdSbp]


def nd_signatures(
    view: OpView,
    mesh: Sequence[int],
    *,
    float_operands: frozenset[str] | None = None,
    engine: str | None = None,
    allow: frozenset[str] = frozenset(),
) -> tuple[NdSignature, ...]:
    """Return every valid signature of an op on a mesh with these axis sizes, all-broadcast first.

    `float_operands`, where given, are the only operands that may be P: a partial sum of integers
    (ids, labels) is never useful. Signatures that `engine` refuses are left out; `allow` names the
    approximations that are permitted.
    """
    one_axis = [
        s
        for s in signatures(view, allow=allow, refused=refused(view.type, engine))
        if float_operands is None or all(n in float_operands for n, x in s.items() if x.kind == "P")
    ]
    names = view.inputs + view.outputs
    found = []
    for combo in itertools.product(one_axis, repeat=len(mesh)):
        states = {name: NdSbp(s[name] for s in combo) for name in names}
        if all(local_shape(view.shape[n], states[n], mesh) is not None for n in names):
            found.append(states)
    return tuple(found)
