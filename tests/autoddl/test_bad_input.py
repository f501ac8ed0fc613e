"""Bad input that needs no engine: one line each that says what to do, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.api import optimize
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import S
from experiments.lib.oneflow_problems import build
from tests.support.programs import mlp

GOOD = profiles.load(None).to_json()


def written(folder: Path, text: str) -> str:
    path = folder / "file.json"
    path.write_text(text)
    return str(path)


def negative_alpha(folder: Path) -> str:
    links = [{**GOOD["links"][0], "alpha_s": -1e-6}, *GOOD["links"][1:]]
    return written(folder, json.dumps({**GOOD, "links": links}))


PROFILES: dict[str, tuple[Callable[[Path], str], tuple[str, ...]]] = {
    "missing": (lambda folder: str(folder / "none.json"), ("no such file", "fit-network")),
    "truncated": (
        lambda folder: written(folder, json.dumps(GOOD)[:200]),
        ("truncated", "fit-network"),
    ),
    "another version": (
        lambda folder: written(folder, json.dumps({**GOOD, "version": 99})),
        ("version 99", "measure again"),
    ),
    "negative α": (negative_alpha, ("alpha_s", "-1e-06", "from 0")),
    "not a profile": (lambda folder: written(folder, "[1, 2]"), ("not a profile", "fit-network")),
}


def refusal(**arguments: Any) -> str:
    with pytest.raises(AutoDDLError) as caught:
        optimize(arguments.pop("graph", mlp()), **{"mesh": "2x2", **arguments})
    message, *table = str(caught.value).split("\n")
    assert bool(table) == (getattr(caught.value, "diagnosis", None) is not None)
    return message


def found_for(message: str) -> int:
    """Return the least memory for which there is a plan, as an error tells it."""
    told = message.partition("the least that a plan was found for is ")[2].partition(" B")[0]
    return int(told.replace(",", ""))


@pytest.mark.parametrize("name", PROFILES)
def test_profiles(name: str, tmp_path: Path) -> None:
    make, words = PROFILES[name]
    message = refusal(profile=make(tmp_path))
    assert all(word in message for word in words), message


@pytest.mark.parametrize("search", ["exact", "data parallel", "Megatron"])
@pytest.mark.parametrize(
    ("batch", "mesh", "over"),
    [
        (6, "4", "over [gpu 4], which does not divide it"),
        (6, "2x4", "over [gpu 4], which does not divide it"),
        (7, "2x4", "over [gpu 2] and [gpu 4], none of which divides it"),
        (8, "2x4", ""),
    ],
)
def test_a_batch_stays_whole_over_axes_that_do_not_divide_it(
    batch: int, mesh: str, over: str, search: str
) -> None:
    plan = optimize(mlp(batch, (16, 32, 8)), mesh=mesh, search=search)
    cuts = [
        size for item in plan.inputs for sbp, size in zip(item.state, plan.mesh.shape, strict=True)
        if sbp == S(0)
    ]  # fmt: skip
    assert all(batch % size == 0 for size in cuts)
    said = [line for line in str(plan).splitlines() if "stays whole" in line]
    assert said == ([f"the batch of {batch} samples stays whole {over}"] if over else [])


def test_memory_that_holds_no_assignment_says_how_much_is_missing() -> None:
    program = mlp(batch=8, sizes=(16, 32, 8), optimizer="adam")
    message = refusal(graph=program, memory=100, budget=2)
    least = found_for(message)
    assert f"{least - 100:,} B more" in message
    assert f"{1:,} B more" in refusal(graph=program, memory=least - 1, budget=2)


@pytest.mark.parametrize("search", ["coordinate", "data parallel"])
def test_a_plan_fits_with_all_its_memory(search: str) -> None:
    program = mlp(batch=8, sizes=(16, 32, 8), optimizer="adam")
    held = build(program, Mesh.parse("2x2"), profiles.load(None)).least_memory_bytes
    message = refusal(graph=program, memory=2 * held, search=search, budget=2)
    needed = found_for(message)
    assert f"{needed - 2 * held:,} B more" in message
    plan = optimize(program, mesh="2x2", memory=needed, search=search)
    assert plan.estimate.memory_bytes <= needed


@pytest.mark.parametrize("mesh", ["", "2y2", "0", "2x0", "x", (2, 0)])
def test_meshes(mesh: Any) -> None:
    assert "mesh" in refusal(mesh=mesh)


def test_a_saved_program_needs_a_mesh() -> None:
    assert "pass mesh=" in refusal(mesh=None)


def test_another_graph_or_device_type() -> None:
    plan = optimize(mlp(), mesh="2x2")
    for program, words in (
        (mlp(batch=16), ("made for graph", "(16, 16)", "plan again")),
        (replace(mlp(), device="cuda"), ("'cpu'", "'cuda'", "plan again on the cluster")),
    ):
        with pytest.raises(AutoDDLError) as caught:
            plan.check_graph(program)
        assert "\n" not in str(caught.value)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    plan.check_graph(mlp())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:300], "plan again"),
        (lambda text: text.replace('"version": 4', '"version": 7'), "version 7"),
        (lambda text: text.replace("autoddl.plan", "something"), "not a plan"),
        (lambda text: text.replace('"signatures"', '"signs"'), r"\$\.parts\[0\]\.layout: .*signs"),
    ],
)
def test_plan_files(change: Callable[[str], str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = optimize(mlp(), mesh="2x2")
    plan.save(path)
    assert autoddl.load(path) == plan
    path.write_text(change(path.read_text()))
    with pytest.raises(AutoDDLError, match=words) as caught:
        autoddl.load(path)
    assert "\n" not in str(caught.value)


def test_one_device_works_trivially() -> None:
    for mesh in ("1", "1x1"):
        plan = optimize(mlp(batch=7), mesh=mesh)
        assert plan.estimate.communication_s == 0.0
        assert plan.redistributions == ()


def test_without_the_engine_unknown_ops_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(engines.load("oneflow")), "installed", lambda engine: False)
    program = mlp(act="gelu")
    ops = tuple(
        replace(op, type=op.type.replace("gelu", "mish")) if "gelu" in op.type else op
        for op in program.ops
    )
    program = replace(program, ops=ops)
    with pytest.warns(UserWarning, match=r"mish \(1\), mish_grad \(1\)") as caught:
        plan = optimize(program, mesh="2x2")
    assert len(caught) == 1
    unknown = next(op.name for op in program.ops if op.type == "mish")
    assert {str(state) for state in plan.signatures[unknown].values()} == {"(B, B)"}
    assert "autoddl.register_rule" in refusal(graph=program, strict=True)
