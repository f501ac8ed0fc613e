"""Index maps with operands that are added once, and outputs that a cut leaves whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autoddl.sbp.rules import registry
from autoddl.sbp.rules.registry import IndexMap, OpRule, labelled
from experiments.rule_cases.reading import case

VIEW = case("toy", "x_0: 8 4, w_0: 4, b_0: 8 -> y_0: 8, s_0: 4")
DIMS = {"x_0": ("m", "k"), "w_0": ("k",), "b_0": ("m",), "y_0": ("m",), "s_0": ("k",)}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_REGISTRY", {})
    yield


def cuts(**more: Any) -> dict[str, str]:
    imap = IndexMap(DIMS, **more)
    registry.register(OpRule("toy", lambda view: imap, lambda op: {}))
    names = VIEW.inputs + VIEW.outputs
    found = labelled(VIEW, allow=frozenset({"rough"}))
    return {label: " ".join(str(states[n]) for n in names) for label, states in found.items()}


def test_what_is_added_once_is_partial_where_the_sum_is_cut() -> None:
    both = frozenset({"m", "k"})
    assert cuts(summed=both)["cut k"] == "S1 S0 B P S0"
    assert cuts(summed=both, added=frozenset({"b_0"}))["cut k"] == "S1 S0 P P S0"
    # The result keeps m: w is no term of the sum that k gives, and stays as it is.
    assert cuts(summed=both, added=frozenset({"b_0"}))["cut m"] == "S0 B S0 S0 P"


def test_whole_outputs_stay_broadcast_unless_the_index_is_summed() -> None:
    whole = frozenset({"y_0", "s_0"})
    assert "cut k" not in cuts()
    assert cuts(whole=whole)["cut k"] == "S1 S0 B B S0"
    assert cuts(whole=whole, summed=frozenset("k"))["cut k"] == "S1 S0 B P S0"


def test_what_every_device_has_of_its_own_is_marked_where_a_cut_is_approximate() -> None:
    own, permission = frozenset({"b_0", "y_0"}), {"k": "rough"}
    assert cuts(own=own, approximate=permission)["cut k"] == "S1 S0 B* B* S0"
    assert "cut k" not in cuts(own=own)
