"""How OneFlow says states, and changes of states."""

from __future__ import annotations

import pytest

from autoddl.codegen.source.expression import Expr, binary
from autoddl.engine.oneflow.dialect.terms import boxed, dtype_text, sbp_text
from autoddl.errors import AutoDDLError
from autoddl.sbp.state import NdSbp


def test_states_are_lists_of_sbp() -> None:
    assert sbp_text(NdSbp.parse("(S1, B, P)")) == "[S(1), B, P]"
    assert sbp_text(NdSbp.parse("(B*, S0)")) == "[B, S(0)]"


def test_gradients_come_back_in_the_dual_state_and_whole() -> None:
    before, after = NdSbp.parse("(P, B)"), NdSbp.parse("(S0, B)")
    found = boxed(binary(Expr("x"), "+", Expr("y")), before, after, trained=True)
    assert found.text == "(x + y).to_global(sbp=[S(0), B], grad_sbp=[B, B])"
    assert boxed(Expr("x"), before, after, trained=False).text == "x.to_global(sbp=[S(0), B])"


def test_dtypes_are_known_ones() -> None:
    assert dtype_text("bfloat16").text == "flow.bfloat16"
    with pytest.raises(AutoDDLError, match="dtype 'float3'; known are float16"):
        dtype_text("float3")
