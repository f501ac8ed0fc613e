"""The scaling benchmark: its cases, bars by hand, and the whole way on a small program."""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from experiments import bench_search
from experiments.bench_search import __main__ as command
from experiments.bench_search import report, worker
from experiments.bench_search.cases import DEVICES, GPT3, LAYERS, MEDIUM, Bars, Case, Model, chosen
from experiments.bench_search.report import Row
from experiments.bench_search.worker import Search
from tests.programs import transformer

TINY = Model(layers=2, width=32, heads=4, sequence=8, batch=8, vocabulary=64)
SEARCH = Search("coordinate", 0.2)
FIGURES = {
    "capture_s": 1.0, "capture_bytes": 10, "ops": 3, "total_s": 2.0, "peak_bytes": 100, "gap": 0.0,
    "build_s": 0.5, "baselines_s": 0.5, "search_s": 0.5, "plan_s": 0.5, "other_s": 0.0, "cost_s": 0.002,
    "step_s": 0.002, "best_baseline": "Megatron", "best_baseline_step_s": 0.002, "chosen_mesh": "2",
}  # fmt: skip


def row(case: Case, **changes: Any) -> Row:
    return Row(case, SEARCH, {**FIGURES, **changes})


def missed(*rows: Row) -> list[str]:
    return [check.name for check in report.checks(rows) if not check.met]


def test_the_cases_cover_what_is_asked() -> None:
    known = {case.name: case for case in chosen(None)}
    assert [known[f"gpt3 {n} layers"].model.layers for n in (12, 24, 48, 96)] == [12, 24, 48, 96]
    assert {c.mesh for c in chosen([LAYERS])} == {"128x8"}
    assert known["gpt3 96 layers"].devices == 1024
    assert [c.devices for c in chosen([DEVICES])] == [8, 32, 128, 512, 2048, 8192]
    assert all(c.model.batch == c.devices for c in chosen([DEVICES]))
    assert known["mesh searched"].devices == 64 and not known["mesh searched"].mesh
    with pytest.raises(AutoDDLError, match="'gpt4'; there are 128 devices"):
        chosen(["gpt4"])


@pytest.mark.oneflow
def test_sizes_are_those_of_the_zoo() -> None:
    from experiments.models import gpt

    assert asdict(MEDIUM) == gpt.SIZES["medium"]
    assert asdict(replace(GPT3, batch=32)) == gpt.SIZES["gpt3_175b"]


@pytest.mark.oneflow
def test_a_captured_model_without_memory_is_the_real_one(tmp_path: Path) -> None:
    from experiments.models import gpt

    notes = worker.capture(TINY, tmp_path / "program.json")
    graph, inputs = gpt.build(**asdict(TINY), optimizer="adam")
    real = autoddl.capture(graph, *inputs)
    found = Program.load(tmp_path / "program.json")
    assert found.fingerprint == real.fingerprint  # ops, shapes, attributes
    assert found.parameters == real.parameters
    assert notes["capture_s"] > 0 and notes["capture_bytes"] > 1e7


def test_bars() -> None:
    bars = Bars(2.0, 100, 0.01, capture_s=1.0, capture_bytes=10)
    case = Case("a", TINY, "2", bars=bars)
    assert missed(row(case, gap=0.01)) == []
    assert missed(row(case, total_s=2.1)) == ["a: program to plan"]
    assert missed(row(case, peak_bytes=101)) == ["a: peak memory"]
    assert missed(row(case, gap=0.0101)) == ["a: gap"]
    assert missed(row(case, capture_s=1.1)) == ["a: capture"]
    assert missed(row(case, capture_bytes=11)) == ["a: capture's peak memory"]
    assert missed(row(case, step_s=0.0021)) == ["a: step, against Megatron"]
    assert missed(Row(case, SEARCH, error="not done after 3 s")) == ["a"]


def test_growth_is_from_the_first_to_the_slowest() -> None:
    small, large = (Case(name, TINY, "2", group=LAYERS) for name in ("small", "large"))
    assert missed(row(small), row(large, total_s=3.0)) == []
    assert missed(row(small), row(large, total_s=3.1)) == ["growth with layers"]
    many = replace(large, group=DEVICES)
    assert missed(row(small), row(many, total_s=3.1)) == []


def test_parts_are_timed_and_put_back() -> None:
    program = transformer(1)
    with worker.timed("coordinate") as parts:
        autoddl.optimize(program, mesh="2", search="coordinate", budget=0.2)
    assert list(parts) == ["build", "baselines", "search", "plan", "other"]
    assert all(parts[part] > 0 for part in ("build", "baselines", "search", "plan"))
    before = dict(parts)
    autoddl.optimize(program, mesh="2", search="coordinate", budget=0.1)
    assert parts == before


def options(folder: Path, **changes: Any) -> argparse.Namespace:
    given = {"folder": folder, "again": False, "limit": 60.0, "repeat": 1, **changes}
    return argparse.Namespace(**given)


def test_the_median_of_several_turns_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Case("one", TINY, "2"), Case("other", TINY, "2x2")
    seconds = {"one": iter([5.0, 1.0, 2.0, 3.0, 4.0]), "other": iter([1.0, 9.0, 3.0])}
    order = []

    def measured(case: Case, *_: object) -> Row:
        order.append(case.name)
        return row(case, total_s=next(seconds[case.name]))

    monkeypatch.setattr(command, "_measured", measured)
    found = command.run([one, other], SEARCH, options(tmp_path, repeat=3))
    assert order == ["one", "other"] * 3
    assert [r.figures["total_s"] for r in found] == [2.0, 3.0]
    again = command.run([one], SEARCH, options(tmp_path, repeat=5))
    assert order[6:] == ["one"] * 2
    assert again[0].figures["total_s"] == 3.0
    assert command.median([row(one), Row(one, SEARCH, error="none")]).error == "none"


def test_files_and_the_way_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "programs").mkdir()
    place = tmp_path / "programs" / f"{TINY.key}.json"
    transformer(2).save(place)
    place.with_suffix(".capture").write_text('{"capture_s": 1.0, "capture_bytes": 1}')
    small, wide = Case("small", TINY, "2"), Case("wide", TINY, "2x2")
    rows = command.run([small, wide], SEARCH, options(tmp_path))
    assert capsys.readouterr().out.count("…") == 2
    runs = tmp_path / "runs.jsonl"
    lines = runs.read_text().splitlines(keepends=True)
    runs.write_text(lines[0] + lines[1][:40])  # killed while it wrote
    again = command.run([small, wide], SEARCH, options(tmp_path))
    assert capsys.readouterr().out.count("…") == 1
    assert [r.figures["ops"] for r in again] == [len(transformer(2).ops)] * 2
    assert again[0] == rows[0] and again[1].figures["cost_s"] == rows[1].figures["cost_s"]
    console = Console(width=120)
    assert report.report(rows, tmp_path, console) == (not missed(*rows))
    with (tmp_path / "bench_search.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(t["case"], t["mesh"], t["devices"]) for t in table] == [
        ("small", "2", "2"),
        ("wide", "2x2", "4"),
    ]
    assert float(table[0]["peak_bytes"]) > 1e7
    assert len(json.loads((tmp_path / "bench_search.json").read_text())["rows"]) == 2


def test_failed_cases_are_said_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "programs").mkdir()
    place = tmp_path / "programs" / f"{TINY.key}.json"
    place.with_suffix(".capture").write_text("{}")
    case = Case("broken", TINY, "2")
    for _ in range(2):  # the program is missing
        (found,) = command.run([case], SEARCH, options(tmp_path))
        assert "program file" in found.error
        assert "capture the graph again" in capsys.readouterr().out
    transformer(1).save(place)
    (found,) = command.run([case], SEARCH, options(tmp_path, limit=0.01))
    assert found.error == "not done after 0.01 s"


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--search", "best", "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("bench_search: --search: got 'best'; there are ")
    assert command.main(["--only", "gpt4", "--folder", str(tmp_path)]) == 2
    assert command.main(["--repeat", "0", "--folder", str(tmp_path)]) == 2
    assert bench_search.__doc__
