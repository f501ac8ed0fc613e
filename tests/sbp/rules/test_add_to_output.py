"""Products that add their result to a given tensor."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.errors import RuleError
from autoddl.sbp.rules.add_to_output import accept_addition, with_addition
from autoddl.sbp.rules.registry import IndexMap, OpRule, labelled, linear
from experiments.rule_cases.reading import case
from tests.sbp.rules.cuda_ops import drawn, first, without

NAMES = ("matmul", "batch_matmul", "broadcast_matmul", "broadcast_matmul_grad_b")
EQUATIONS = dict(
    zip(NAMES, ("mk,kn->mn", "bmk,bnk->bmn", "bmk,nk->bmn", "bmn,bmk->nk"), strict=True)
)


@pytest.mark.parametrize("op_type", NAMES)
def test_the_result_is_the_sum(op_type: str) -> None:
    inputs, results = drawn(first(op_type))
    product = np.einsum(EQUATIONS[op_type], inputs["a_0"], inputs["b_0"])
    np.testing.assert_allclose(results["out_0"], product + inputs["_add_to_output_0"])


def test_what_is_added_has_the_state_of_the_result() -> None:
    found = labelled(first("broadcast_matmul"))
    states = {label: f"{s['_add_to_output_0']} {s['out_0']}" for label, s in found.items()}
    assert states.pop("B") == "B B"
    assert states == {
        "cut d0": "S0 S0", "cut m": "S1 S1", "cut n": "S2 S2", "cut k": "P P",
        "P _add_to_output_0 a_0": "P P", "P _add_to_output_0 b_0": "P P",
    }  # fmt: skip


@pytest.mark.parametrize("op_type", NAMES)
def test_ops_without_it_are_as_before(op_type: str) -> None:
    plain = without(first(op_type), "_add_to_output_0")
    assert not any("_add" in label for label in labelled(plain))


def test_only_what_reaches_the_output_is_extended() -> None:
    view = case("toy", "a_0: 4, b_0: 4, _add_to_output_0: 4 -> y_0: 4, z_0: 4")
    dims = dict.fromkeys(("a_0", "b_0", "y_0", "z_0"), ("i",))
    imap = IndexMap(dims, linear=(linear("a_0 -> y_0"), linear("b_0 -> z_0")))
    rule = with_addition(OpRule("toy", lambda view: imap, lambda op: {}), "y_0")
    groups = (linear("a_0 _add_to_output_0 -> y_0"), linear("b_0 -> z_0"))
    assert rule.indices(view).linear == groups


def test_only_registered_rules_are_extended() -> None:
    with pytest.raises(RuleError, match="nonsense: no rule to extend"):
        accept_addition("nonsense", "out_0")
