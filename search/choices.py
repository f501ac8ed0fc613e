"""What an op may choose from: its valid signatures on a mesh, by its rule or by the engine's list."""

from __future__ import annotations

from collections.abc import Callable

from autoddl.errors import RuleError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.candidates import NdSignature, nd_products, nd_signatures
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.rules.registry import OpView, Signature, find, signatures
from autoddl.sbp.state import B, NdSbp

SignatureLists = Callable[[Op, int], tuple[Signature, ...]]
"""The one-axis signatures of an op without a rule over a number of devices; () if unknown."""


def choices(
    program: Program,
    op: Op,
    mesh: Mesh,
    lists: SignatureLists | None = None,
    allow: frozenset[str] = frozenset(),
) -> tuple[NdSignature, ...]:
    """Return the signatures among which the search chooses, all-broadcast first.

    `lists` is asked about ops without a rule; where it knows nothing they are all-broadcast. `allow`
    names the approximations that are permitted.

    Raises:
        RuleError: the rule of the op's type can't be used on it.
    """
    view = OpView.of(op, program.shapes(op))
    floats = frozenset(
        o for o, t in op.operands if program.tensor[t].dtype.startswith(("float", "bfloat"))
    )
    if find(op.type) is None:
        broadcast = signatures(view)
        axes = [(*broadcast, *(lists(op, n) if lists and n > 1 else ())) for n in mesh.shape]
        unique = [tuple({tuple(s[o] for o, _ in op.operands): s for s in a}.values()) for a in axes]
        found = nd_products(view, mesh.shape, unique, float_operands=floats)
    else:
        try:
            found = nd_signatures(
                view, mesh.shape, float_operands=floats, engine=ONEFLOW, allow=allow
            )
        except (LookupError, TypeError, ValueError) as error:
            raise RuleError(
                f"rule of {op.type}: can't be used on op {op.name} ({error!r}); correct the rule, "
                "or capture the graph again"
            ) from error
    return tuple(c for c in found if all(whole_where_single(s, mesh) for s in c.values()))


def whole_where_single(state: NdSbp, mesh: Mesh) -> bool:
    """Tell whether a state is B on the axes of one device, where all states are the same."""
    return all(s == B for s, size in zip(state, mesh.shape, strict=True) if size == 1)


def unknown_types(program: Program) -> dict[str, int]:
    """Return the op types without a rule, with how often each occurs, most frequent first."""
    counts: dict[str, int] = {}
    for op in program.ops:
        if find(op.type) is None:
            counts[op.type] = counts.get(op.type, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
