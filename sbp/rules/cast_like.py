"""cast_like: take over another tensor's dtype."""

from __future__ import annotations

from autoddl.sbp.rules.maps import no_flops, same_dims
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register


def _cast_like_map(view: OpView) -> IndexMap:
    """Map cast_like between floats; P of integers or truths is no state, so it is never asked for."""
    return IndexMap(
        same_dims(view, view.inputs + view.outputs),
        linear=(linear("in_0"),),
        shape_only=frozenset({"dtype_like_0"}),
    )


def _cast_like(op: LocalOp) -> dict[str, Array]:
    return {"out_0": op.inputs["in_0"]}


register(OpRule("cast_like", _cast_like_map, _cast_like, no_flops, family="memory"))
