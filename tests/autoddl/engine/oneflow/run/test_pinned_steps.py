"""Steps under pins of every kind: what is pinned is so, and they train as one device does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.on_ranks import Launched

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

PINNED: dict[
    str, dict[str, Callable[[str], bool]]
] = {  # by kind: what holds of which tensor's state
    "module": {"model.0-broadcast_add-1/z_0": lambda state: "S1" in state},
    "op": {"model.1-gelu-2/out_0": lambda state: state != "(B, B)" and "S0" not in state},
    "gradient": {"model.2-matmul-22/out_0": lambda state: "P" in state},
    "several": {
        "model.2-broadcast_add-4/z_0": lambda state: state in ("(S0, S1)", "(S1, S0)"),
        "input.0.0": lambda state: state == "(S0, B)",
    },
    "level": {
        "model.0-broadcast_add-1/z_0": lambda state: state == "(S0, S0)",
        "model.2.weight": lambda state: state != "(B, B)",
    },
    "stage": {"model.4-broadcast_add-7/z_0": lambda state: state == "(S0)"},
}


@pytest.fixture(scope="module")
def seen(launched: Launched) -> Any:
    return json.loads((launched("pinned_steps", ranks=4) / "seen.json").read_text())


@pytest.mark.parametrize("kind", PINNED)
def test_what_is_pinned_is_so_and_trains_as_on_one_device(seen: Any, kind: str) -> None:
    found = seen[kind]
    for tensor, holds in PINNED[kind].items():
        assert holds(found["states"][tensor]), found["states"][tensor]
    assert len(set(seen["reference"])) == 10
    assert found["losses"] == pytest.approx(seen["reference"], abs=1e-4)
    assert found["changed"] == []


def test_ops_are_in_the_stages_that_they_are_pinned_to(seen: Any) -> None:
    stages = seen["stage"]["stages"]
    assert stages["model.1-gelu-2"] == 0
    assert stages["model.2-matmul-3"] == stages["model.2.weight"] == 1
