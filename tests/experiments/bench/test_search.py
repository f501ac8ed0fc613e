"""The scaling benchmark: its cases, bars by hand, and the whole way on a small program."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.sbp.program import Program
from experiments.bench.frozen.suite import GPT3, MEDIUM
from experiments.bench.search import __main__ as bench
from experiments.bench.search.gpts import DEVICES, LAYERS, GptCase
from experiments.lib import cli
from experiments.lib.frames import Row
from experiments.lib.programs import capture_facts, captured
from tests.support.programs import transformer

TINY = {"layers": 2, "width": 32, "heads": 4, "sequence": 8, "vocabulary": 64, "batch": 8}
SEARCH = {"search": "coordinate", "budget": 0.2, "seed": 0, "memory": "80GB"}
FIGURES = {
    "group": "", "capture_s": 1.0, "capture_bytes": 10, "ops": 3, "total_s": 2.0, "peak_bytes": 100,
    "gap": 0.0, "step_s": 0.002, "best_baseline": "Megatron", "best_baseline_step_s": 0.002,
}  # fmt: skip


def missed(*rows: tuple[GptCase, dict[str, Any]]) -> list[str]:
    found = [{**FIGURES, "group": case.group, **changes} for case, changes in rows]
    return [what for what, *_, met in bench.checks(found, [case for case, _ in rows]) if not met]


def test_the_cases_cover_what_is_asked() -> None:
    known = {case.name: case for case in bench.chosen([])}
    assert [known[f"gpt3 {n} layers"].sizes["layers"] for n in (12, 24, 48, 96)] == [12, 24, 48, 96]
    assert {c.mesh for c in bench.chosen([LAYERS])} == {"128x8"}
    assert known["gpt3 96 layers"].devices == 1024
    assert [c.devices for c in bench.chosen([DEVICES])] == [8, 32, 128, 512, 2048, 8192]
    assert all(c.sizes["batch"] == c.devices for c in bench.chosen([DEVICES]))
    assert known["mesh searched"].devices == 64 and not known["mesh searched"].mesh


@pytest.mark.oneflow
def test_sizes_are_those_of_the_zoo() -> None:
    from experiments.models import gpt

    assert gpt.SIZES["medium"] == MEDIUM
    assert gpt.SIZES["gpt3_175b"] == {**GPT3, "batch": 32}


@pytest.mark.oneflow
def test_a_captured_model_without_memory_is_the_real_one(tmp_path: Path) -> None:
    from experiments.models import gpt

    file = tmp_path / "program.json"
    captured(file, "gpt", "toy", **TINY, optimizer="adam")
    graph, inputs = gpt.build(**TINY, optimizer="adam")
    real = autoddl.capture(graph, *inputs)
    found = Program.load(file)
    assert found.fingerprint == real.fingerprint  # ops, shapes, attributes
    assert found.parameters == real.parameters
    facts = capture_facts(file)
    assert facts["capture_s"] > 0 and facts["capture_bytes"] > 1e7


def test_bars() -> None:
    bars = {"total_s": 2.0, "peak_bytes": 100, "gap": 0.01, "capture_s": 1.0, "capture_bytes": 10}
    case = GptCase("a", TINY, "2", bars=bars)
    assert missed((case, {"gap": 0.01})) == []
    assert missed((case, {"total_s": 2.1})) == ["a: program to plan"]
    assert missed((case, {"peak_bytes": 101})) == ["a: peak memory"]
    assert missed((case, {"gap": 0.0101})) == ["a: gap"]
    assert missed((case, {"capture_s": 1.1})) == ["a: capture"]
    assert missed((case, {"capture_bytes": 11})) == ["a: capture's peak memory"]
    assert missed((case, {"step_s": 0.0021})) == ["a: step, against Megatron"]
    assert missed((case, {"error": "not done after 3 s"})) == ["a"]


def test_growth_is_from_the_first_to_the_slowest() -> None:
    small, large = (GptCase(name, TINY, "2", group=LAYERS) for name in ("small", "large"))
    assert missed((small, {}), (large, {"total_s": 3.0})) == []
    assert missed((small, {}), (large, {"total_s": 3.1})) == ["growth with layers"]
    many = replace(large, group=DEVICES)
    assert missed((small, {}), (many, {"total_s": 3.1})) == []


def run(folder: Path, *found: GptCase, repeat: int = 1, limit_s: float = 60.0) -> list[Row]:
    return bench.run(found, SEARCH, folder, repeat=repeat, limit_s=limit_s)


def test_the_median_of_several_turns_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = GptCase("one", TINY, "2"), GptCase("other", TINY, "2x2")
    seconds = {"one": iter([5.0, 1.0, 2.0, 3.0, 4.0]), "other": iter([1.0, 9.0, 3.0])}
    order = []

    def measured(case: GptCase, *_: object) -> Row:
        order.append(case.name)
        return {**FIGURES, "total_s": next(seconds[case.name])}

    monkeypatch.setattr(bench, "measured", measured)
    found = run(tmp_path, one, other, repeat=3)
    assert order == ["one", "other"] * 3
    assert [r["total_s"] for r in found] == [2.0, 3.0]
    (again,) = run(tmp_path, one, repeat=5)
    assert order[6:] == ["one"] * 2
    assert again["total_s"] == 3.0


def program(folder: Path, layers: int) -> Path:
    """Save a Transformer where the captured one would be."""
    file = folder / "programs" / f"gpt-{'-'.join(map(str, TINY.values()))}.json"
    file.parent.mkdir(exist_ok=True)
    transformer(layers).save(file)
    file.with_suffix(".facts").write_text('{"capture_s": 1.0, "capture_bytes": 1}')
    return file


def test_files_and_the_way_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(tmp_path, 2)
    cases = GptCase("small", TINY, "2"), GptCase("wide", TINY, "2x2")
    rows = run(tmp_path, *cases)
    assert capsys.readouterr().out.count("…") == 2
    runs = tmp_path / "runs.jsonl"
    lines = runs.read_text().splitlines(keepends=True)
    runs.write_text(lines[0] + lines[1][:40])  # killed while it wrote
    again = run(tmp_path, *cases)
    assert capsys.readouterr().out.count("…") == 1
    assert [r["ops"] for r in again] == [len(transformer(2).ops)] * 2
    assert again[0] == rows[0] and again[1]["cost_s"] == rows[1]["cost_s"]
    assert all(rows[0][f"{part}_s"] > 0 for part in bench.PARTS)
    assert bench.report(rows, cases, tmp_path) == (not missed(*zip(cases, rows, strict=True)))
    with (tmp_path / "bench_search.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(t["case"], t["mesh"], t["devices"]) for t in table] == [
        ("small", "2", "2"),
        ("wide", "2x2", "4"),
    ]
    assert float(table[0]["peak_bytes"]) > 1e7
    assert len(json.loads((tmp_path / "bench_search.json").read_text())["rows"]) == 2


def test_failed_cases_are_said_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, file = GptCase("broken", TINY, "2"), program(tmp_path, 1)
    whole = file.read_text()
    file.write_text("{}")
    for _ in range(2):
        (found,) = run(tmp_path, case, repeat=3)
        assert "program file" in found["error"]
        assert capsys.readouterr().out.count("capture the graph again") == 1
    file.write_text(whole)
    (found,) = run(tmp_path, case, limit_s=0.01)
    assert found["error"] == "not done after 0.01 s"


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def main(*argv: str) -> int:
        return cli.run(bench.command, "bench.search", [*argv, "--folder", str(tmp_path)])

    assert main("--only", "gpt4") == 2
    err = capsys.readouterr().err
    assert err.startswith("bench.search: ") and "'gpt4' is not one of '128 devices', '2048" in err
    assert main("--repeat", "0") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
