"""The scaling benchmark: its cases, bars by hand, and the whole way on a small program."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.sbp.program import Program
from experiments.bench import search as bench
from experiments.bench.frozen.suite import GPT3, MEDIUM
from experiments.bench.search import GptCase
from experiments.lib import cli
from experiments.lib.frames import RowStore
from experiments.lib.programs import capture_facts, captured
from tests.support.programs import transformer

TINY = {"layers": 2, "width": 32, "heads": 4, "sequence": 8, "vocabulary": 64, "batch": 8}
FIGURES = {
    "group": "", "capture_s": 1.0, "capture_bytes": 10, "ops": 3, "total_s": 2.0, "peak_bytes": 100,
    "gap": 0.0, "step_s": 0.002, "best_baseline": "Megatron", "best_baseline_step_s": 0.002,
}  # fmt: skip


def missed(*rows: tuple[GptCase, dict[str, Any]]) -> list[str]:
    found = [{**FIGURES, "group": case.group, **changes} for case, changes in rows]
    return [what for what, *_, met in bench.checks(found, [case for case, _ in rows]) if not met]


def test_the_cases_cover_what_is_asked() -> None:
    known = {case.name: case for case in bench.cases()}
    assert {case.group for case in known.values()} == {"", *bench.GROWTH}
    assert [known[f"gpt3 {n} layers"].sizes["layers"] for n in (12, 24, 48, 96)] == [12, 24, 48, 96]
    meshes = [case.mesh for case in known.values() if case.group == "devices"]
    assert meshes == ["2x4", "4x8", "16x8", "64x8", "256x8", "1024x8"]
    assert known["mesh searched"].cluster == "8x8" and not known["mesh searched"].mesh


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
    for name, bar in bars.items():
        assert missed((case, {name: bar * 1.01})) == [f"a: {name}"]
    assert missed((case, {"step_s": 0.0021})) == ["a: step, against Megatron"]
    assert missed((case, {"error": "not done after 3 s"})) == ["a"]


def test_growth_is_from_the_first_to_the_slowest() -> None:
    small, large = (GptCase(name, TINY, "2", "layers") for name in ("small", "large"))
    assert missed((small, {}), (large, {"total_s": 3.0})) == []
    assert missed((small, {}), (large, {"total_s": 3.1})) == ["growth with layers"]
    many = GptCase("many", TINY, "2", "devices")
    assert missed((small, {}), (many, {"total_s": 3.1})) == []


def main(folder: Path, *argv: str) -> int:
    words = ["--budget", "0.2", "--folder", str(folder), *argv]
    return cli.run(bench.command, "bench.search", words)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Save a Transformer where the captured one would be; it is what is planned on two meshes."""

    def cases() -> Iterator[GptCase]:
        yield GptCase("small", TINY, "2")
        yield GptCase("wide", TINY, "2x2")

    monkeypatch.setattr(bench, "cases", cases)
    file = tmp_path / "programs" / f"gpt-{'-'.join(map(str, TINY.values()))}.json"
    file.parent.mkdir()
    transformer().save(file)
    file.with_suffix(".facts").write_text('{"capture_s": 1.0, "capture_bytes": 1}')
    return file


def test_files_and_the_way_back(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_child, said = bench.in_child, list[str]()

    def once(*arguments: Any) -> str:
        said.append(said[0] if said else in_child(*arguments))
        return said[-1]

    monkeypatch.setattr(bench, "in_child", once)
    with monkeypatch.context() as patch:
        patch.setattr(bench, "cases", lambda: [GptCase("small", TINY, "2")])
        codes = [main(tmp_path)]
    runs = tmp_path / "runs.jsonl"
    line = runs.read_text()
    runs.write_text(line + line.replace('"small"', '"wide"')[:40])  # killed while it wrote
    codes.append(main(tmp_path))
    kept = RowStore(runs).rows
    assert [row["case"] for row in kept] == ["small", "wide"] and len(said) == 2
    assert kept[0] == json.loads(line)
    assert set(codes) <= {0, cli.MISSED}
    with (tmp_path / "bench_search.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(t["case"], t["mesh"]) for t in table] == [("small", "2"), ("wide", "2x2")]
    assert float(table[0]["peak_bytes"]) > 1e7 and float(table[0]["total_s"]) > 0
    assert {int(t["ops"]) for t in table} == {len(transformer().ops)}
    assert len(json.loads((tmp_path / "bench_search.json").read_text())["rows"]) == 2


def test_failed_cases_are_said_and_tried_again(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole = program.read_text()
    program.write_text("{}")
    assert main(tmp_path) == cli.MISSED
    assert "capture the graph again" in capsys.readouterr().out
    program.write_text(whole)
    monkeypatch.setattr(bench, "LIMIT_S", 0.01)
    assert main(tmp_path) == cli.MISSED
    assert "small: not done after 0.01 s (at most a plan: MISSED)" in capsys.readouterr().out


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path, "--only", "gpt4") == 2
    err = capsys.readouterr().err
    assert err.startswith("bench.search: ") and "'gpt4' is not one of '128 devices', '2048" in err
    assert len(err.splitlines()) == 1
