"""Remedies fit when they are followed, as they are written; tensors in the way are those of the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl import Budget
from autoddl.cli import app
from autoddl.errors import InfeasibleError
from autoddl.planner.memory_limits import parse_bytes
from autoddl.remedies import doctor
from autoddl.remedies.changes import more_devices, size_text
from autoddl.remedies.diagnosis import Change, Diagnosis, Remedy
from autoddl.remedies.holdings import Holding, largest
from autoddl.sbp.program import Program
from experiments.lib.oneflow_problems import read
from experiments.proofs.remedies import followed
from tests.support import clusters
from tests.support.clusters import of_two_kinds
from tests.support.programs import mlp, transformer

BUDGET = Budget(evaluations=1e4)
WIDE = (16, 64, 128)


def wide(batch: int) -> Program:
    return mlp(batch, WIDE)


def deep(batch: int) -> Program:
    return replace(transformer(layers=2, batch=batch), device="cuda")


ONE_STAGE: Mapping[str, Any] = {"pipeline": 1, "budget": BUDGET}
CPU, GPU = {**ONE_STAGE, "profile": "cpu-loopback"}, {**ONE_STAGE, "profile": "h100"}
# A program by its samples, options, bytes, and options that remedies change.
SHORT: dict[str, tuple[Callable[[int], Program], dict[str, Any], int, set[str]]] = {
    "pins": (wide, {"mesh": "4", "pin": {"*.weight": "B"}, **CPU}, 130_000, {"pin", "memory"}),
    "data parallel": (wide, {"mesh": "2x2", "search": "data parallel", **CPU}, 250_000,
                      {"search", "memory"}),
    "nothing again": (deep, {"mesh": "1", "recompute": "none", **GPU}, 1_060_000,
                      {"recompute", "memory"}),
}  # fmt: skip


@cache
def short(case: str) -> tuple[InfeasibleError, Diagnosis]:
    """Return the error of a case, and its diagnosis."""
    make, options, limit, _ = SHORT[case]
    return diagnosed(make(16), memory=limit, **options)


def diagnosed(program: Program, **options: Any) -> tuple[InfeasibleError, Diagnosis]:
    """Return the error of a call within whose memory nothing fits, and its diagnosis."""
    with pytest.raises(InfeasibleError) as told:
        autoddl.optimize(program, **options)
    assert isinstance(told.value.diagnosis, Diagnosis), str(told.value)
    return told.value, told.value.diagnosis


@pytest.mark.parametrize("case", SHORT)
def test_remedies_fit_when_followed(case: str) -> None:
    make, options, limit, expected = SHORT[case]
    error, found = short(case)
    assert followed(found, {**options, "memory": limit}, make(16), make) == []
    changed = {name for remedy in found.remedies for name in remedy.change.options}
    assert expected <= changed, str(error)
    assert found.needed_bytes is not None and found.needed_bytes > limit
    first, *table = str(error).split("\n")
    assert f"; the least that a plan was found for is {found.needed_bytes:,} B, " in first
    assert first == error.line and len(table) > 3 and all(map(str.isprintable, table))


def test_following_finds_what_is_wrong() -> None:
    make, options, limit, _ = SHORT["pins"]
    _, found = short("pins")
    free = next(each for each in found.remedies if "pin" in each.change.options)
    wrong = (
        replace(free, step_s=1.01 * free.step_s),
        Remedy(Change({"memory": size_text(limit)}), 1.0, limit),
        Remedy(Change({}, batch=(8, 16)), 1.0, limit),
    )
    said = followed(
        replace(found, remedies=wrong), {**options, "memory": limit}, make(16), make
    )  # fmt: skip
    assert len(said) == len(wrong) and " ms, not " in said[0]
    assert all(f"memory {limit:,} B per device" in each for each in said[1:])


def test_parameters_that_alone_take_more() -> None:
    numbers = sum(a * b + b for a, b in pairwise(WIDE))
    alone = numbers * 4 * 3 // 4  # float32 with two states of Adam, on four devices
    error, found = diagnosed(wide(16), mesh="4", memory=alone - 1, **CPU)
    assert error.line.startswith(
        f"memory {alone - 1:,} B per device: parameters and optimizer states alone take {alone:,} B on "
        f"each of the 4 devices, even cut over all of them; the least that a plan was found for is "
        f"{found.needed_bytes:,} B, "
    )
    assert not any(remedy.change.batch for remedy in found.remedies)
    error, _ = diagnosed(wide(16), mesh="4", memory=alone, **CPU)
    assert error.line.startswith(f"memory {alone:,} B per device: no plan fits on mesh 4")
    with pytest.raises(InfeasibleError, match="alone take") as told:
        autoddl.optimize(wide(16), mesh="1", memory=1000, **{**CPU, "budget": 0.1})
    said = str(told.value)
    assert (
        f"alone take {4 * alone:,} B on the device. memory 1,000 B per device on mesh 1: " in said
    )
    assert "\n" not in said


def test_the_largest_tensors_by_role_and_layer() -> None:
    plan = autoddl.optimize(
        transformer(layers=3, batch=4), mesh="1", profile="cpu-loopback", budget=0.2
    )  # fmt: skip
    weights = {n.name: n.size_bytes for n in plan.program.tensors if n.role == "parameter"}
    told = {(each.role, each.name): each.size_bytes for each in largest(plan, 1000)}
    fc1 = 3 * weights["model.blocks.0.fc1.weight"]
    for role, times in (("parameter", 1), ("gradient", 1), ("optimizer state", 2)):
        assert told[role, "model.blocks.0 … 2.fc1.weight (3 times)"] == times * fc1
        assert sum(s for (r, _), s in told.items() if r == role) == times * sum(weights.values())
    inputs = sum(plan.program.tensor[name].size_bytes for name in plan.program.inputs)
    assert sum(size for (role, _), size in told.items() if role == "input") == inputs
    gelu = next(op for op in plan.program.ops if op.type == "gelu_grad")
    read_back = plan.program.tensor[dict(gelu.inputs)["x_0"]].size_bytes
    name = "model.blocks.0 … 2.fc1 (3 times): broadcast_add"
    assert told["activation", name] == 3 * read_back
    sizes = [each.size_bytes for each in largest(plan)]
    assert len(sizes) == 5 and sizes == sorted(told.values(), reverse=True)[:5]


def test_no_diagnosis_where_it_makes_no_sense() -> None:
    for options in (
        {"memory": 130_000, "pin": {"*.weight": "B"}, "budget": 0.5},
        {"memory": 130_000, "pin": {"*.weight": "B"}, "budget": Budget(evaluations=9_999)},
    ):
        with pytest.raises(InfeasibleError) as told:
            autoddl.optimize(wide(16), mesh="4", **{**CPU, **options})
        assert told.value.diagnosis is None and "\n" not in str(told.value)

    def plan(program: Program, changes: Mapping[str, Any]) -> Any:
        raise AssertionError("it is not planned again")

    other = InfeasibleError("mesh: too many states")
    request = read(wide(16), mesh="4", memory=130_000, **CPU)
    assert doctor.explained(other, request, request, plan) is other


def test_trials_end_with_the_budget() -> None:
    """And what was not tried is told."""
    spent = []

    def plan(program: Program, changes: Mapping[str, Any]) -> Any:
        allowance = changes["budget"].begin()
        spent.append(allowance.seconds)
        allowance.clock.count(2_500)
        raise InfeasibleError("memory: no")

    request = read(wide(16), mesh="4", memory=130_000, pin={"*.weight": "B"}, **CPU)
    error = doctor.explained(InfeasibleError("memory: no"), request, request, plan)
    found = error.diagnosis
    assert isinstance(found, Diagnosis) and found.remedies == () and found.untried != ()
    assert spent == [pytest.approx(0.1)] * 4  # 10,000 evaluations by 2,500 each
    lines = str(error).split("\n")
    assert any(line.startswith("not tried: ") for line in lines)
    assert any(line.startswith("tried in vain: ") for line in lines)


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, _, limit, _ = SHORT["nothing again"]
    make(16).save("deep.json")
    words = "--mesh 1 --pipeline 1 --recompute none --profile h100 --evaluations 1e4"
    assert app.main(["plan", "deep.json", *words.split(), "--memory", str(limit)]) == 2
    out, err = capsys.readouterr()
    first, *table = err.splitlines()
    assert out == "" and first.startswith(f"autoddl plan: memory {limit:,} B per device: no plan ")
    assert any(line.startswith("  --recompute auto ") for line in table)
    assert "recompute=" not in err and not Path("plan.json").exists()


def test_larger_clusters() -> None:
    """On the levels of the profile, of all kinds alike, and not such as parameters alone exceed."""
    two = of_two_kinds(clusters.cluster())
    for options, limit, larger in (
        ({"mesh": "2x2"}, 100_000, ["4x2", "8x2", "16x2"]),
        ({"mesh": "2x2", "profile": "h100"}, 100_000, ["4x2", "8x2", "16x2"]),
        ({"mesh": "4", "profile": "h100"}, 100_000, ["8", "4x4", "8x4"]),
        ({"cluster": "4"}, 100_000, ["8", "16", "32"]),
        ({"cluster": "4"}, 112_896 // 32, ["32", "64", "128"]),
        ({"cluster": "2*fastx2 + 1*slowx2", "profile": two}, 100_000,
         [f"{2 * n}*fastx2 + {n}*slowx2" for n in (2, 4, 8)]),
    ):  # fmt: skip
        request = read(wide(16), **{**CPU, "memory": limit, **options})
        found = [each.options for each in more_devices(request, options.get("cluster"))]
        assert [value for each in found for value in each.values()] == larger, options


def test_texts() -> None:
    for change, python, terminal in (
        (Change({"recompute": "layers"}), 'recompute="layers"', "--recompute layers"),
        (Change({"search": "ZeRO 2"}), 'search="ZeRO 2"', "--search 'ZeRO 2'"),
        (Change({"micro_batches": 4}), "micro_batches=4", "--micro-batches 4"),
        (Change({"duplex": False}), "duplex=False", "--duplex no"),
        (Change({"pin": None}), "without pin", "without --pin"),
        (Change({"mesh": None, "cluster": "2x4"}), 'cluster="2x4" without mesh',
         "--cluster 2x4 without --mesh"),
        (Change({}, batch=(1, 8)), "inputs of 1 sample, not 8", "inputs of 1 sample, not 8"),
    ):  # fmt: skip
        assert change.text() == python and change.text(terminal=True) == terminal
    for size in (1, 255, 256, 1000, 12_345_678, 10**12 + 1, (1 << 49) + 1):
        assert size <= parse_bytes(size_text(size)) <= 1.01 * size + 1, size


def test_names_cannot_write_to_the_terminal() -> None:
    evil = "\x1b[31mred\n\u202e" + "x" * 500
    held = (Holding("parameter", evil, 10),)
    cluster = Change({"cluster": evil})
    found = Diagnosis(1, 2, held, (Remedy(cluster, 1.0, 1),), (cluster,), (cluster,), BUDGET)
    for terminal in (False, True):
        lines = found.lines(terminal=terminal)
        assert len(lines) == 6 and all(map(str.isprintable, lines))
