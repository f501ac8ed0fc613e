"""What an op may choose from: its valid signatures on a mesh, by its rule or by the engine's list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoddl.engine.model import Limits
from autoddl.errors import AutoDDLError, RuleError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.candidates import NdSignature, in_any_order, nd_products
from autoddl.sbp.rules.registry import OpView, Signature, find, signatures
from autoddl.sbp.state import NdSbp, Sbp

SignatureLists = Callable[[Op, int], tuple[Signature, ...]]
"""The engine's one-axis signatures of an op over a number of devices; () if unknown or not asked."""


def choices(
    program: Program,
    op: Op,
    mesh: Mesh,
    lists: SignatureLists | None = None,
    allow: frozenset[str] = frozenset(),
    *,
    limits: Limits,
    strided: Sequence[Sequence[Signature]] = (),
) -> tuple[NdSignature, ...]:
    """Return the signatures among which the search chooses, all-broadcast first.

    They are those that an engine of these `limits` can execute, in any order of the axes if that can.
    `lists` knows the engine's own signatures of ops that have no rule (they are all-broadcast where it
    has none) or a user's (of which those are left out that it lacks). `allow` names the approximations
    that are permitted, `strided` has by axis what there is with strides beside those of the rule.

    Raises:
        RuleError: the rule of the op's type can't be used on it.
        AutoDDLError: the engine can't run it on a mesh of so many axes.
    """
    if op.type in limits.one_axis and mesh.ndim > 1:
        raise AutoDDLError(
            f"op {op.name}: the engine has {op.type} on meshes of one axis alone, got {mesh}; plan with "
            f'mesh="{mesh.size}", or without sparse updates'
        )
    view = OpView.of(op, program.shapes(op))
    floats = frozenset(
        o for o, t in op.operands if program.tensor[t].dtype.startswith(("float", "bfloat"))
    )
    listed = [lists(op, n) if lists and n > 1 else () for n in mesh.shape]
    try:
        unknown = find(op.type) is None
        if unknown or any(listed):
            ours, join = signatures(view, allow=allow), _merged if unknown else _common
            axes = [join(view, ours, entries) for entries in listed]
        else:
            refused = limits.refused.get(op.type, frozenset())
            ours = signatures(view, allow=allow, refused=refused)
            axes = [(*ours, *some) for some in strided or [()] * mesh.ndim]
        found = nd_products(view, mesh.cuts, axes, float_operands=floats)
    except (LookupError, TypeError, ValueError) as error:
        raise RuleError(
            f"rule of {op.type}: can't be used on op {op.name} ({error!r}); correct the rule, "
            "or capture the graph again"
        ) from error
    if limits.any_order:
        return in_any_order(found, mesh.cuts)
    return tuple(s for s in found if not any(map(_has_turns, s.values()))) if strided else found


def _has_turns(state: NdSbp) -> bool:
    return any(sbp.turn for sbp in state)


def _states(view: OpView, signature: Signature) -> tuple[Sbp, ...]:
    return tuple(signature[name] for name in view.inputs + view.outputs)


def _merged(
    view: OpView, ours: tuple[Signature, ...], listed: tuple[Signature, ...]
) -> tuple[Signature, ...]:
    """Return both, each signature once."""
    return tuple({_states(view, s): s for s in (*ours, *listed)}.values())


def _common(
    view: OpView, ours: tuple[Signature, ...], listed: tuple[Signature, ...]
) -> tuple[Signature, ...]:
    """Return ours that the engine lists, and all-broadcast; all of ours where it has no list."""
    known = {_states(view, signature) for signature in listed}
    return tuple(s for i, s in enumerate(ours) if i == 0 or not known or _states(view, s) in known)
