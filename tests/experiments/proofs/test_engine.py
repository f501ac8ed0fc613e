"""The comparison with the engine: what is refused, what is missing, what the table says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl.engine.oneflow.signatures.signature_list import SignatureList
from autoddl.sbp.state import B, P, S
from experiments.lib import cli
from experiments.proofs import engine
from experiments.proofs.engine import EngineReport, Instance, TypeReport, compare
from experiments.rule_cases import case

ADD = case("add_n", "in_0: 8 2, in_1: 8 2 -> out_0: 8 2")


def all_of(state: Any) -> dict[str, Any]:
    return dict.fromkeys(("in_0", "in_1", "out_0"), state)


def test_signatures_are_compared_where_they_cut_evenly() -> None:
    listed = SignatureList((all_of(B), all_of(S(0)), all_of(S(1)), {**all_of(P), "in_1": B}))
    two, four = compare(ADD, 2, listed), compare(ADD, 4, listed)
    assert four.case == "in_0: 8 2, in_1: 8 2"
    assert (two.accepted, four.accepted) == (("B", "cut d0", "cut d1"), ("B", "cut d0"))
    assert two.refused == four.refused == ("P in_0 in_1",)
    assert two.engine_only == four.engine_only == ("P B -> P",)


def test_no_list_accepts_and_refuses_nothing() -> None:
    instance = compare(ADD, 2, SignatureList(None, "why"))
    assert (instance.accepted, instance.refused, instance.engine_only) == ((), (), ())
    report = EngineReport("e 1", (TypeReport("add_n", (instance,)),), {"add_n": frozenset({"P"})})
    assert report.faults == ()
    assert json.loads(engine.written(report))["refused"] == {"add_n": ["P"]}
    assert "no list: why" in next(iter(report.rows()))[-1]


def report(*instances: tuple[str, str]) -> EngineReport:
    """Make a report of add_n from accepted and refused labels, separated by semicolons."""
    made = [
        Instance("add_n", str(i), 2, *(tuple(filter(None, text.split("; "))) for text in pair), ())
        for i, pair in enumerate(instances)
    ]
    table = {"add_n": frozenset({"P x"}), "relu": frozenset({"cut d0"}), "gone": frozenset("a")}
    return EngineReport("e 1", (TypeReport("add_n", tuple(made)),), table)


def test_the_table_holds_what_any_instance_refuses() -> None:
    seen = report(("B; cut d0; P y", "cut d1"), ("B; cut d1", "P x; P x + P y; cut d0 + P y"))
    (row,) = seen.types
    assert row.disputed == ("cut d1",)
    assert seen.refused == {"add_n": ("P x", "cut d0 + P y", "cut d1")}
    assert "accepted elsewhere: cut d1" in next(iter(seen.rows()))[-1]
    assert len(seen.faults) == 1 and "--write" in seen.faults[0]
    kept = {"add_n": ["P x", "cut d0 + P y", "cut d1"], "relu": ["cut d0"]}
    assert json.loads(engine.written(seen)) == {"engine": "e 1", "refused": kept}
    assert '\n    "relu": ["cut d0"]\n' in engine.written(seen)  # one op type a line
    again = replace(seen, table={name: frozenset(labels) for name, labels in kept.items()})
    assert again.faults == ()
    assert json.loads(json.dumps(seen.to_json()))["instances"][0]["accepted"][0] == "B"


def test_a_label_refused_at_every_dim_is_refused_at_dims_not_seen() -> None:
    labels = report(("B; cut d0", "cut r1; cut r2; P a_0")).refused["add_n"]
    assert labels == ("P a_0", *(f"cut r{dim}" for dim in range(engine.MAX_NDIM)))
    assert report(("cut r0", "cut r1")).refused["add_n"] == ("cut r1",)


@pytest.mark.oneflow
def test_the_table_in_use_says_what_the_engine_does() -> None:
    seen: list[tuple[int, int]] = []
    found = engine.run(seed=0, progress=lambda *pair: seen.append(pair))
    assert found.faults == ()
    assert seen[-1][0] == seen[-1][1]
    reasons = {t.op_type: t.reasons for t in found.types if t.reasons}
    assert set(reasons) <= {"ones_like", "zero_like"}, reasons
    assert all("function of the op's own" in text for texts in reasons.values() for text in texts)
    by_type = {t.op_type: t for t in found.types}
    assert "P -> P" in by_type["cast"].engine_only  # wrong for integers


@pytest.mark.oneflow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments import check_rules

    file = tmp_path / "seen.json"
    options = ["--engine", "--models", "mlp", "--only", "relu,cast", "--json", str(file)]
    assert cli.run(check_rules.command, "check_rules", options) == 0
    out = capsys.readouterr().out
    assert "relu" in out and "2 op types, oneflow 0.9.0" in out
    assert {i["op_type"] for i in json.loads(file.read_text())["engine"]["instances"]} == {
        "relu",
        "cast",
    }
    assert cli.run(check_rules.command, "check_rules", ["--engine", "--only", "nosuch"]) == 2
    assert capsys.readouterr().err == "check_rules: --only: no rule for nosuch\n"
