"""Layers are computed again where that is asked for, or memory is short; else one line says why not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.plan import codec
from autoddl.planner import choose
from autoddl.planner.race import Race
from autoddl.planner.request import Request
from autoddl.sbp.rewrites.recomputed_layers import ops_again, recomputes
from autoddl.search.budget import Allowance, Budget
from tests.support.programs import Builder, activation, linear, mse, transformer

DEEP = replace(transformer(layers=4, batch=16), device="cuda")
OPTIONS: dict[str, Any] = {
    "mesh": "2", "profile": "h100", "budget": Budget(evaluations=2e3), "pipeline": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def kept() -> Plan:
    return autoddl.optimize(DEEP, memory="1TB", **OPTIONS)


@pytest.fixture(scope="module")
def again() -> Plan:
    return autoddl.optimize(DEEP, memory="1TB", recompute="layers", **OPTIONS)


def test_it_takes_less_memory_and_more_time(kept: Plan, again: Plan) -> None:
    assert recomputes(again.program) and not recomputes(kept.program)
    assert again.estimate.memory_bytes < 0.6 * kept.estimate.memory_bytes
    assert kept.estimate.step_s < again.estimate.step_s < 1.5 * kept.estimate.step_s
    assert f"runs {len(ops_again(again.program))} ops inside 4 of 4 layers again: " in str(again)
    assert Plan.of(codec.decode(codec.encode(again), "plan", engines.model)) == again


def test_memory_decides_by_itself(kept: Plan, again: Plan) -> None:
    limit = again.estimate.memory_bytes
    found = autoddl.optimize(DEEP, memory=limit, **OPTIONS)
    assert recomputes(found.program) and found.estimate.memory_bytes <= limit
    assert kept.estimate.step_s < found.estimate.step_s < again.estimate.step_s
    without = autoddl.optimize(DEEP, memory=limit, recompute="none", **OPTIONS)
    assert without.compute_stream and without.estimate.step_s > found.estimate.step_s
    roomy = autoddl.optimize(DEEP, memory=kept.estimate.memory_bytes, **OPTIONS)
    assert not recomputes(roomy.program)


@pytest.fixture(scope="module")
def alone() -> dict[str, Plan]:
    """Return plans on one device, where memory depends on nothing but what is made again."""
    options = {**OPTIONS, "mesh": "1", "memory": "1TB"}
    return {how: autoddl.optimize(DEEP, recompute=how, **options) for how in ("none", "layers")}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_just_as_much_as_it_takes(alone: dict[str, Plan], share: float) -> None:
    most, least = (alone[how].estimate for how in ("none", "layers"))
    limit = int(least.memory_bytes + share * (most.memory_bytes - least.memory_bytes))
    found = autoddl.optimize(DEEP, **{**OPTIONS, "mesh": "1", "memory": limit})
    ops, every = ops_again(found.program), ops_again(alone["layers"].program)
    assert set(ops) < set(every)
    assert 0.9 * limit < found.estimate.memory_bytes <= limit
    even = least.step_s + share * (most.step_s - least.step_s)
    assert most.step_s < found.estimate.step_s < even  # what is cheap is made again
    rows = {row.name: row for row in found.baselines}
    assert rows["in more memory"].step_s == pytest.approx(most.step_s)
    assert rows["in more memory"].memory_bytes == most.memory_bytes
    assert rows["whole layers again"].step_s == pytest.approx(least.step_s)
    more = found.estimate.step_s / most.step_s - 1
    told = f"runs {len(ops)} ops inside "
    assert told in str(found) and f"({more:.1%}) more per step" in str(found)
    assert Plan.of(codec.decode(codec.encode(found), "plan", engines.model)) == found


@pytest.mark.parametrize("compute_stream", [False, True])
def test_less_is_made_again_in_the_same_states(compute_stream: bool) -> None:
    program = replace(transformer(layers=2, batch=64, length=64, width=256), device="cuda")
    options = {**OPTIONS, "memory": 120_000_000, "compute_stream": compute_stream}
    every, found = (
        autoddl.optimize(program, recompute=how, **options) for how in ("layers", "auto")
    )
    assert found.estimate.step_s < 0.95 * every.estimate.step_s
    assert set(ops_again(found.program)) < set(ops_again(every.program))
    assert {name: every.signatures[name] for name in found.signatures} == dict(found.signatures)
    assert found.variables == every.variables
    assert "(S0)" in {
        str(state) for signature in found.signatures.values() for state in signature.values()
    }


def test_it_is_searched_as_if_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the same seconds, and whatever was found without: so it is never slower."""
    limit, tried = 1_500_000, dict[str, list[tuple[float, bool]]]()
    first = choose._whole_or_in_parts

    def noted(request: Request, race: Race, allowance: Allowance) -> Race:
        if request.recompute == "layers":
            tried.setdefault(how, []).append((round(allowance.seconds, 6), race.best is None))
        return first(request, race, allowance)

    monkeypatch.setattr(choose, "_whole_or_in_parts", noted)
    for how in ("auto", "layers"):
        autoddl.optimize(DEEP, memory=limit, recompute=how, **OPTIONS)
    assert tried["auto"] == tried["layers"] == [(0.2, True)]


def test_what_no_recomputation_meets_is_told_with_the_least(again: Plan) -> None:
    with pytest.raises(InfeasibleError) as told:
        autoddl.optimize(DEEP, memory=again.estimate.memory_bytes // 2, **OPTIONS)
    text = r"memory [\d,]+ B .*, with all layers computed again, needs ([\d,]+) B, [\d,]+ B more; "
    found = re.match(text, str(told.value))
    assert found is not None and "\n" not in str(told.value), str(told.value)
    least = int(found[1].replace(",", ""))
    with pytest.raises(InfeasibleError, match="with all layers computed again, needs at least "):
        autoddl.optimize(DEEP, memory=least // 2, **OPTIONS)
    assert least < again.estimate.memory_bytes
    assert autoddl.optimize(DEEP, memory=least, **OPTIONS).estimate.memory_bytes <= least


def test_programs_and_options_that_do_not_fit() -> None:
    g = Builder()
    x, target = g.input((4, 8)), g.input((4, 8))
    with g.module("model.only"):
        x = activation(g, linear(g, x, 8), "gelu")
    alone = g.program(mse(g, x, target), "sgd")
    asked = {**OPTIONS, "recompute": "layers"}
    text = r"without layers, modules of numbered lists .* could be model\.only \(128 B\)$"
    with pytest.raises(AutoDDLError, match=text) as told:
        autoddl.optimize(alone, **asked)
    assert "\n" not in str(told.value)
    for more in ({"pipeline": 2}, {"duplex": True}, {"micro_batches": 2}):
        with pytest.raises(AutoDDLError, match="recompute: got 'layers' with") as told:
            autoddl.optimize(DEEP, **{**asked, **more})
        assert "\n" not in str(told.value)
    with pytest.raises(
        AutoDDLError, match=r"recompute: got 'layer'; allowed are auto, layers, none$"
    ):
        autoddl.optimize(DEEP, **{**asked, "recompute": "layer"})


def test_scripts_refuse_it(again: Plan, tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match="plan with recompute='none'"):
        again.codegen(tmp_path / "script.py")
