"""The paper's runs by the model: the best of each method, what ours saves, one small run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments.figures import paper_scale
from experiments.figures.paper_scale import OURS, PaperRun, best, savings, with_sums
from experiments.lib import cli, frames
from experiments.lib.frames import RowStore
from tests.support.programs import transformer

TINY = {"layers": 1, "width": 64, "heads": 4, "sequence": 16, "vocabulary": 64, "batch": 16}


def _row(
    method: str, mesh: str, step_s: float | None, compute_s: float, sent_s: float, over: str = ""
) -> object:
    return {
        "figure": "fig09", "model": "m", "cluster": "4", "method": method, "mesh": mesh,
        "stages": 1, "step_s": step_s, "compute_s": compute_s, "communication_s": sent_s,
        "printed": 0.1,        "printed_communication": 0.2, "memory_bytes": 1, "over": over,
    }  # fmt: skip


def test_what_is_saved_over_the_second_best() -> None:
    frame = with_sums(pd.DataFrame([
        _row("Megatron", "a", 10.0, 8.0, 6.0), _row("Megatron", "b", 11.0, 8.0, 5.0),
        _row("SUMMA", "a", 9.0, 8.0, 8.0), _row("data parallel", "a", None, 1.0, 1.0),
        _row(OURS, "a", 8.1, 8.0, 3.0), _row(OURS, "b", 9.0, 9.0, 1.0),
    ]))  # fmt: skip
    by_sum = best(frame, "sum_s").set_index("method")
    assert by_sum.mesh.to_dict() == {"Megatron": "b", "SUMMA": "a", "data parallel": "a", OURS: "b"}
    (summed,) = savings(best(frame, "sum_s"), "sum_s").to_dict("records")
    assert summed["second"] == "Megatron" and summed["saved"] == pytest.approx(1 - 10 / 13)
    assert summed["saved_communication"] == pytest.approx(1 - 1 / 5)
    (stepped,) = savings(best(frame, "step_s"), "step_s").to_dict("records")
    assert stepped["second"] == "SUMMA" and stepped["saved"] == pytest.approx(1 - 8.1 / 9)
    assert stepped["printed"] == 0.1


def test_what_is_saved_over_the_plan_that_the_paper_names() -> None:
    frame = with_sums(pd.DataFrame([
        _row("Megatron", "a", 9.0, 8.0, 2.0), _row("data parallel", "a", 20.0, 8.0, 16.0),
        _row(OURS, "a", 8.0, 8.0, 2.0, over="data parallel"),
    ]))  # fmt: skip
    (found,) = savings(best(frame, "step_s"), "step_s").to_dict("records")
    assert found["second"] == "data parallel" and found["saved"] == pytest.approx(0.6)
    assert found["saved_communication"] == pytest.approx(1 - 2 / 16)


def test_where_no_other_plan_fits_nothing_is_compared() -> None:
    frame = with_sums(pd.DataFrame([
        _row("Megatron", "a", None, 8.0, 2.0), _row(OURS, "a", 8.0, 8.0, 2.0),
    ]))  # fmt: skip
    found = savings(best(frame, "step_s"), "step_s")
    assert found.second.tolist() == [""] and found.saved.isna().all()
    assert "10.0%" in frames.text(found, paper_scale.SAVINGS)  # what the paper saved is told


def test_stages_of_equal_devices_within_any_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = transformer(1, batch=16)
    monkeypatch.setattr(paper_scale, "_program", lambda *_: program)
    run = replace(paper_scale.RUNS[-1], name="tiny", nodes=4, sizes=TINY, micro_batches=(2,))
    assert [(n, mesh.describe()) for n, mesh in run.meshes()] == [
        (1, "[node 4]"), (1, "[node 2][node 2]"), (2, "[node 2]"), (4, "[node 1]")
    ]  # fmt: skip
    frame = with_sums(pd.DataFrame(paper_scale.rows(run, RowStore(tmp_path / "rows"), tmp_path)))
    for _, mine in frame.groupby("stages"):
        least = mine.groupby("method").step_s.min()
        assert 0 < least[OURS] <= least.min() * (1 + 1e-9)
    assert (frame.sum_s == frame.step_s)[frame.stages > 1].all()
    (saved,) = savings(best(frame, "step_s"), "step_s").to_dict("records")
    assert saved["second"] == "Megatron" and saved["printed"] == pytest.approx(1 - 508 / 807)


def test_a_run_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--models", "tall", "--folder", str(tmp_path)]
    assert cli.run(paper_scale.command, "figures.paper_scale", argv) == 2
    assert "--models 'tall': no run is left of 14" in capsys.readouterr().err


def test_a_small_run_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_scale, "SEARCH_S", 0.2)
    monkeypatch.setattr(paper_scale, "_program", lambda *_: transformer(1, batch=16))
    run = PaperRun("fig09", "m", "gpt", 4, 1, "p100-aries", "16GiB", TINY, 0.1, 0.2, (1, 2))
    found = list(paper_scale.rows(run, RowStore(tmp_path / "rows.jsonl"), tmp_path))
    frame = with_sums(pd.DataFrame(found))
    assert set(frame.micro_batches) == {1, 2} and len(set(frame.mesh)) == 2
    assert {OURS, "data parallel", "Megatron"} <= set(frame.method)
    fastest = best(frame, "sum_s").set_index("method").sum_s
    assert fastest[OURS] <= 1.01 * fastest.min()  # the gap at which its search ends

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(paper_scale, "_rows", never)
    again = list(paper_scale.rows(run, RowStore(tmp_path / "rows.jsonl"), tmp_path))
    assert again == found
