"""Updates of the rows of an embedding table that a batch has looked up, and of no others.

`model_diff_indices` are the rows, `model_diff_values` their gradients; those of a row that occurs
several times are added up first. A device with some of the rows needs all indices and values, one with
some of the columns all indices, and its columns of the values. With cut indices copies of the table would
part.

Example: table 4 x 2, indices (3, 3), values ((1, 0), (2, 0)): row 3 is updated by the gradient (3, 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from autoddl.sbp.rules import optimizer
from autoddl.sbp.rules.embedding import row_number
from autoddl.sbp.rules.maps import dim_names, elements, positive
from autoddl.sbp.rules.registry import Array, Dims, IndexMap, LocalOp, OpRule, OpView, register

PREFIX = "indexed_slices_"
"""What types of such ops begin with; the rest is the type of the update of whole tables."""
_INDICES, _VALUES = "model_diff_indices_0", "model_diff_values_0"
_TABLES = ("model_0", "m_0", "v_0", "max_v_0", "momentum_0")
_DENSE: dict[str, Any] = {
    "scale": 1.0, "l1": 0.0, "l2": 0.0, "amsgrad": False, "bias_correction1_val": 1.0,
    "bias_correction2_val": 1.0,
}  # fmt: skip


def _map(view: OpView) -> IndexMap:
    table = dim_names(len(view.shape["model_0"]))
    uncut: Dims = (None,) * len(view.shape[_INDICES])
    own: dict[str, Dims] = {_INDICES: uncut, _VALUES: (*uncut, *table[1:])}
    rest = {name: (None,) * len(view.shape[name]) for name in view.inputs}
    tables = {name: table for name in view.inputs if name in _TABLES}
    return IndexMap(rest | tables | own, in_order=frozenset({"d0"}))


def _on_rows(dense: Callable[[LocalOp], dict[str, Array]]) -> Callable[[LocalOp], dict[str, Array]]:
    """Return a reference that updates the rows held here as `dense` updates a table."""

    def reference(op: LocalOp) -> dict[str, Array]:
        tables = {name: op.inputs[name] for name in op.view.inputs if name in _TABLES}
        ids = op.inputs[_INDICES].ravel() - op.start["model_0"][0]
        here = (ids >= 0) & (ids < len(tables["model_0"]))
        rows, place = np.unique(ids[here], return_inverse=True)
        gradient = np.zeros((len(rows), *tables["model_0"].shape[1:]))
        values = op.inputs[_VALUES].reshape(len(ids), *gradient.shape[1:])
        np.add.at(gradient, place, values[here])
        own = {name: table[rows] for name, table in tables.items()}
        view = replace(op.view, attr=_DENSE | dict(op.view.attr))
        rate = op.inputs["learning_rate_0"]
        inputs = {**own, "model_diff_0": gradient, "learning_rate_0": rate}
        found = {name: np.array(table, dtype=np.float64) for name, table in tables.items()}
        for name, new in dense(LocalOp(view, inputs, op.start)).items():
            found[name][rows] = new
        return found

    return reference


def _rule(kind: str, dense: Callable[[LocalOp], dict[str, Array]], flop: float) -> OpRule:
    return OpRule(
        PREFIX + kind,
        _map,
        _on_rows(dense),
        lambda view: flop * elements(view.shape[_VALUES]),
        family="optimizer",
        samplers={
            _INDICES: row_number,
            **dict.fromkeys(("v_0", "max_v_0", "learning_rate_0"), positive),
        },
        writes=frozenset(_TABLES),
    )


register(
    _rule("sgd_update", optimizer.sgd, 4),
    _rule("momentum_update", optimizer.momentum, 6),
    _rule("adam_update", optimizer.adam, 12),
)
