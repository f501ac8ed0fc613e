"""Figure 7: curves and medians by hand, and the whole way on a small program, without OneFlow."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import pytest

from autoddl.errors import InfeasibleError
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions, SearchResult
from experiments.figures import fig07
from experiments.lib import cli
from experiments.lib.frames import Row, RowStore
from tests.support.programs import mlp

SETTING = {"model": "m", "program": "f", "mesh": "2", "profile": "p", "budget_s": 10.0}


def run(
    solver: str, seed: int, evaluations: int, *trace: tuple[float, float], error: str = ""
) -> Row:
    return {
        **SETTING, "solver": solver, "seed": seed, "evaluations": evaluations, "trace": list(trace),
        "error": error,
    }  # fmt: skip


# Best costs 8, 4 and 5 of three seeds, the last one found late.
RUNS = [
    run("random", 0, 10, (1.0, 16.0), (4.0, 8.0), (10.0, 8.0)),
    run("random", 1, 30, (0.1, 12.0), (2.0, 4.0), (10.0, 4.0)),
    run("random", 2, 20, (1.0, 20.0), (9.0, 5.0), (10.0, 5.0)),
]


def test_searches_know_the_best_cost_of_any_solver() -> None:
    other = run("coordinate", 0, 5, (1.0, 2.0))
    refused = run("exhaustive", 0, 0, error="too large")
    found = fig07.searches([*RUNS, other, refused])
    assert found.solver.tolist() == ["random"] * 3 + ["coordinate"]
    assert set(found.best_s) == {2.0}
    assert found.relative.tolist() == [4.0, 2.0, 2.5, 1.0]


def test_curves_are_medians_and_ranges_of_what_is_known_at_a_time() -> None:
    curve = fig07.curve(fig07.searches(RUNS))
    assert curve.search_s.min() == pytest.approx(0.1) and curve.search_s.max() == 10.0

    def shown(seconds: float) -> tuple[float, float, float]:
        last = curve[curve.search_s <= seconds].iloc[-1]
        return last["median"], last.low, last.high

    assert shown(0.5) == (inf, 3.0, inf)  # one seed of three knows a plan
    assert shown(1.5) == (4.0, 3.0, 5.0)
    assert shown(5.0) == (2.0, 1.0, 5.0)
    assert shown(10.0) == (1.25, 1.0, 2.0)


def test_summary() -> None:
    (found,) = fig07.summaries(fig07.searches(RUNS)).itertuples()
    assert (found.seeds, found.relative, found.low, found.high) == (3, 1.25, 1.0, 2.0)
    assert found.within_s == inf  # two of three seeds never are
    assert found.evaluations == 20
    assert fig07.searches(RUNS[1:2]).within_s.item() == 2.0


def test_thinned_traces_keep_the_ends_and_what_matters() -> None:
    trace = ((0.0, 100.0), (1.0, 99.9999), (2.0, 99.0), (3.0, 98.995), (4.0, 98.98), (5.0, 98.98))
    assert fig07.thinned(trace) == (trace[0], trace[2], trace[4], trace[5])
    assert fig07.thinned(trace[:1]) == trace[:1]
    assert fig07.thinned(()) == ()


def arguments(folder: Path, *more: str) -> list[str]:
    """The command line for a small program, which is in the folder as if it had been traced."""
    (folder / "programs").mkdir(parents=True, exist_ok=True)
    mlp(8, (4, 2), optimizer="sgd", act="").save(folder / "programs" / "small.json")
    return [
        "--models", "small", "--mesh", "2", "--seconds", "0.05", "--seeds", "2",
        "--profile", "cpu-loopback", "--folder", str(folder), *more,
    ]  # fmt: skip


def main(command: list[str]) -> int:
    return cli.run(fig07.command, "figures.fig07", command)


def test_files_and_the_way_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    command = arguments(tmp_path, "--solvers", "random,coordinate")
    assert main(command) == 0
    first = capsys.readouterr().out
    assert first.count(", seed ") == 4
    assert (tmp_path / "fig07.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((tmp_path / "fig07.json").read_text())
    assert [s["solver"] for s in data["rows"]] == ["random", "coordinate"]
    assert min(s["low"] for s in data["rows"]) == 1.0
    monkeypatch.setattr(fig07, "draw", lambda *_: None)  # once is enough
    runs = tmp_path / "runs.jsonl"
    lines = runs.read_text().splitlines(keepends=True)
    runs.write_text("".join(lines[:3]) + lines[3][:40])  # killed while it wrote
    assert main(command) == 0
    assert capsys.readouterr().out.count(", seed ") == 1
    assert [row["seed"] for row in RowStore(runs).rows] == [0, 1, 0, 1]
    assert main(command) == 0
    assert ", seed " not in capsys.readouterr().out


def test_what_is_too_large_is_said_once_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    tried = []

    def refuse(problem: CostNetwork, options: SearchOptions) -> SearchResult:
        tried.append(options.seed)
        raise InfeasibleError("too large for me")

    solvers = {**fig07.SOLVERS, "exhaustive": refuse}
    monkeypatch.setattr(fig07, "SOLVERS", solvers)
    monkeypatch.setattr(fig07, "draw", lambda *_: None)
    command = arguments(tmp_path, "--solvers", "exhaustive,random")
    assert main(command) == 0
    assert main(command) == 0
    assert tried == [0]
    out = capsys.readouterr().out
    assert "left out: small: exhaustive: too large for me" in out
    data = json.loads((tmp_path / "fig07.json").read_text())
    assert data["left_out"] == [["small", "exhaustive", "too large for me"]]
    assert [s["solver"] for s in data["rows"]] == ["random"]


def test_bad_solvers_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "--solvers", "best")) == 2
    assert "'--solvers': 'best' is not one of 'astar', 'coordinate'" in capsys.readouterr().err
