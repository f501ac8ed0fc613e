"""How OneFlow says states, dtypes and changes of states in Python."""

from __future__ import annotations

from autoddl.codegen.source.expression import Expr
from autoddl.errors import AutoDDLError, shown
from autoddl.sbp.program import ITEM_BYTES
from autoddl.sbp.state import B, NdSbp


def dtype_text(dtype: str) -> Expr:
    """Return the name of a dtype in OneFlow.

    Raises:
        AutoDDLError: there is none.
    """
    if dtype not in ITEM_BYTES:
        raise AutoDDLError(f"codegen: dtype {shown(dtype)}; known are {', '.join(ITEM_BYTES)}")
    return Expr(f"flow.{dtype}")


def sbp_text(state: NdSbp) -> str:
    """Return a state as the list of OneFlow's SBPs: "[S(0), B]"."""
    parts = [f"S({s.dim})" if s.is_split else s.kind for s in state.executed]
    return f"[{', '.join(parts)}]"


def boxed(value: Expr, before: NdSbp, after: NdSbp, *, trained: bool) -> Expr:
    """Return a value in another state; the gradient comes back in `backward_state(before)`."""
    grad = f", grad_sbp={sbp_text(backward_state(before))}" if trained else ""
    return Expr(f"{value.atom}.to_global(sbp={sbp_text(after)}{grad})")


def backward_state(state: NdSbp) -> NdSbp:
    """Return the state in which a gradient leaves a boxing that starts from `state`.

    That of P is B (docs/formulas.md). That of B would be P: it is reduced here, so that what comes before
    gets whole gradients.
    """
    return NdSbp(B if s.is_partial else s for s in state.executed)
