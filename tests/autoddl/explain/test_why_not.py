"""States that tensors have not: what they cost, or the reason why they can't be."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.explain.asked import asked_for
from autoddl.explain.reopened import Reopened, reopened
from autoddl.explain.why_not import why_not
from autoddl.search.budget import Budget
from tests.autoddl.explain.plans import planned, profile_for

FC1 = "model.blocks.0.fc1"
MEGATRON = {"search": "Megatron"}


def opened(name: str = "transformer", **options: str) -> Reopened:
    return reopened(planned(name, **(options or MEGATRON)), profile_for(name))


@pytest.mark.parametrize(
    ("name", "wanted", "expected"),
    [
        (f"{FC1}.weight", "P", "parameters are whole or cut between steps, never parts of a sum"),
        (f"{FC1}.weight", "S2", "it has shape (128, 32), and no dim 2"),
        (FC1, "S7", "and no dim 7"),
        ("model.blocks.0.ln1", "P(max)", "no signature of "),
        ("input.0.0", "S0,P", "inputs are whole or cut between steps"),
    ],
)
def test_what_is_not_legal_says_why(name: str, wanted: str, expected: str) -> None:
    told = why_not(opened(), name, wanted, None)
    assert told.cost is None and expected in told.reason, told


def test_what_does_not_cut_evenly_says_why() -> None:
    """Four samples over eight devices; the mesh 2x2 would cut them."""
    told = why_not(opened("attention", search="data parallel", mesh="8"), "model.query", "S0", None)
    assert told.reason == "dim 0 has 4 elements, which 8 GPUs do not divide"
    told = why_not(
        opened("attention", search="data parallel", mesh="2x4"), "model.query", "S0,S0", None
    )
    assert told.reason == "dim 0 has 4 elements, which 8 nodes and GPUs do not divide"


def test_what_the_plan_has() -> None:
    told = why_not(opened(), FC1, "S2", None)
    assert (told.reason, told.now, told.cost) == ("the plan has it", "(S2, S2)", None)


@pytest.mark.parametrize("wanted", ["S0", "(S0, B)", "S0,S0", "P", "B,B"])
def test_what_is_legal_costs_the_least_with_it(wanted: str) -> None:
    """Of all choices whose result has that state, told with the rest fixed one by one."""
    found = opened()
    asked, told = asked_for(found.problem, FC1)[0], why_not(found, FC1, wanted, None)
    assert told.cost is not None and told.reason == ""
    domain = found.problem.variables.of(found.variables[asked[:2]])
    entries = wanted.strip("()").replace(" ", "").split(",")
    steps = {}
    for number, choice in enumerate(domain.choices):
        have = [str(sbp) for sbp in choice["out_0"]]
        if have == entries or (len(entries) == 1 and entries[0] in have):
            steps[number] = found.with_choice(asked[:2], number).step_s
    assert told.cost.fixed_s == min(steps.values())
    assert told.step_s == found.chosen.step_s


def test_re_planned_with_any_of_them() -> None:
    found = opened("large", search="data parallel")
    for name in (f"{FC1}.weight", FC1):
        told = why_not(found, name, "S1", Budget(evaluations=1))
        assert told.cost is not None and told.cost.replanned_s is not None
        assert told.cost.replanned_s <= told.cost.fixed_s


@pytest.mark.parametrize(
    "wanted", ["", "S", "Q", "S0,S0,S0", "\x1b[1m", "S0," * 2000, "S99999999999"]
)
def test_what_is_no_state(wanted: str) -> None:
    with pytest.raises(AutoDDLError) as error:
        told = why_not(opened(), FC1, wanted, None)
        raise AutoDDLError(told.reason)
    assert str(error.value).isprintable() and len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"why": 5}, "why: got 5; allowed is text"),
        ({"why": FC1, "why_not": b"S0"}, "why_not: got b'S0'; allowed is text"),
        ({"why_not": "S0"}, "of what"),
        ({"why": FC1, "budget": -1}, "budget: got -1; allowed are seconds > 0"),
        ({"why": FC1, "budget": "soon"}, "budget: got 'soon'"),
        ({"why": FC1, "profile": 7}, "profile: got 7"),
    ],
)
def test_wrong_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(AutoDDLError) as error:
        planned("transformer").explain(**{"profile": profile_for("transformer"), **options})
    assert expected in str(error.value) and str(error.value).isprintable()


def test_what_the_engine_refuses_is_told_from_what_is_wrong() -> None:
    """OneFlow has no axis that cuts a dim before one further out; without an engine there are such."""
    told = why_not(opened("large", search="data parallel"), FC1, "S0',S0", None)
    assert told.reason.startswith("OneFlow can't execute a broadcast_matmul with that signature")
    free = reopened(planned("large", search="data parallel", engine=None), profile_for("large"))
    assert why_not(free, FC1, "S0',S0", None).cost is not None
