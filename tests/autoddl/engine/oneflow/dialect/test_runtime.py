"""What scripts carry, tried alone on one device; and that they carry it as it stands there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoddl.engine.oneflow import dialect
from autoddl.engine.oneflow.dialect.runtime.module_parameters import part
from autoddl.engine.oneflow.dialect.runtime_source import functions_of
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shards import all_states, shard_slices

RUNTIME = Path(str(dialect.__file__)).parent / "runtime"


@pytest.mark.parametrize("file", sorted(RUNTIME.glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_functions_come_as_they_stand_in_their_modules(file: Path) -> None:
    text = file.read_text()
    names = [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    found = functions_of(file.stem, *names)
    assert all(f"\ndef {name}(" in f"\n{found}" for name in names)
    assert all(piece in text for piece in found.split("\n\n\n"))


def test_a_part_has_the_parameters_of_its_module() -> None:
    params = {"blocks.1.fc.weight": 1, "blocks.10.fc.weight": 2, "blocks.1.norm": 3}
    assert part(params, "blocks.1") == {"fc.weight": 1, "norm": 3}


@pytest.mark.oneflow
def test_weights_go_through_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.dialect.runtime import whole_model as script

    whole = [flow.sbp.broadcast]
    monkeypatch.setattr(script, "PARAMETERS", {"weight": whole})
    monkeypatch.setattr(script, "BUFFERS", {"mean": whole})
    stored = {"weight": flow.ones(2, 3), "mean": flow.zeros(3), "count": flow.tensor(7)}
    flow.save(stored, str(tmp_path / "model"))
    params = script.load_parameters(str(tmp_path / "model"))
    assert isinstance(params["weight"], flow.nn.Parameter)
    script.save_checkpoint(str(tmp_path / "again"), params)
    found = flow.load(str(tmp_path / "again"))
    assert {name: t.numpy().tolist() for name, t in found.items()} == {
        name: t.numpy().tolist() for name, t in stored.items()
    }
    monkeypatch.setattr(script, "PARAMETERS", {"bias": whole})
    with pytest.raises(SystemExit, match="no bias in it"):
        script.load_parameters(str(tmp_path / "model"))


@pytest.mark.oneflow
def test_batches_are_the_rows_of_the_file_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.dialect.runtime import whole_model as script

    inputs = {"x": ((2, 3), "float32", [flow.sbp.broadcast], None)}
    monkeypatch.setattr(script, "INPUTS", inputs)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "data.npz", x=rows)
    stream = script.batches(str(tmp_path / "data.npz"))
    found = [script.as_whole(next(stream)[0]) for _ in range(3)]
    np.testing.assert_array_equal(found, [rows[:2], rows[2:], rows[:2]])
    (made,) = next(script.batches(None))
    assert made.shape == (2, 3)


@pytest.mark.oneflow
@pytest.mark.parametrize(
    ("passes", "again"),
    [(None, []), ("recomputed_stages", [0]), ("local_stages", []), ("local_stages", [0])],
)
def test_one_stage_takes_the_mean_over_micro_batches(
    passes: str | None, again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.dialect.runtime import staged_model

    taken: list[Any] = []
    others = [import_module(f"{dialect.__name__}.runtime.{passes}")] if passes else []
    for script in (staged_model, *others):
        monkeypatch.setattr(script, "MICRO_BATCHES", 2)
        monkeypatch.setattr(script, "ARGUMENTS", [["x"]])
        monkeypatch.setattr(script, "FORWARD", [lambda params, x: (params["w"] * x).sum()])
    monkeypatch.setattr(staged_model, "ORDER", [staged_model.actions(0, "F0 B0 F1 B1")])
    monkeypatch.setattr(
        staged_model, "update", lambda params, _: taken.append(params["w"].grad.numpy())
    )
    for script in others:
        monkeypatch.setattr(script, "RECOMPUTED", again)
        for name in ("run_forward", "run_backward"):
            monkeypatch.setattr(staged_model, name, getattr(script, name))
    w = flow.nn.Parameter(flow.ones(3))
    batches = [{"x": flow.tensor([1.0, 2.0, 3.0])}, {"x": flow.tensor([3.0, 2.0, 1.0])}]
    loss = staged_model.train_step({"w": w}, None, batches)
    assert float(loss.numpy()) == 6.0
    np.testing.assert_allclose(taken, [[2.0, 2.0, 2.0]])
    assert staged_model.DONE == ["F0", "B0", "LA0", "F1", "B1", "LA1", "AG"]


@pytest.mark.oneflow
@pytest.mark.parametrize("text", ["2:3/1", "2:3/1x2", "2x2:1/3"])
def test_boxes_of_a_stage_are_its_shards(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from autoddl.engine.oneflow.dialect.runtime import local_stages as script

    mesh, shape = Mesh.parse(text), (8, 16)
    monkeypatch.setattr(script, "RANKS", [np.arange(mesh.size).reshape(mesh.shape).tolist()])
    units = [axis.shares or (1,) * axis.size for axis in mesh.axes]
    monkeypatch.setattr(script, "UNITS", [units])
    for state in all_states(shape, mesh.cuts):
        if any(s.is_partial for s in state):
            continue
        slices = [shard_slices(shape, state, mesh.cuts, mesh.coords(n)) for n in range(mesh.size)]
        expected = [
            tuple(part.indices(n)[:2] for part, n in zip(s, shape, strict=True)) for s in slices
        ]
        entries = [s.dim if s.is_split else s.kind for s in state]
        assert script.boxes(shape, entries, 0) == expected, state
