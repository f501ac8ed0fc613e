"""What if: every row is what `optimize` finds with the same options, and what can't be is told."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import autoddl
from autoddl.compare.variants import BASE, WhatIf
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.scaled_profile import scaled
from autoddl.sbp.rewrites.micro_batch import with_batch
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROGRAM = mlp(64, (64, 128, 64))
FEW = autoddl.Budget(evaluations=500)
GIVEN: dict[str, Any] = {"profile": cluster(), "budget": FEW}
ONE = {"pipeline": 1}
LINKS = [{"node": 2.0}, {"gpu": 0.5, "node.latency": 10.0}]
MEMORY, MESHES, BATCHES = ["230KiB", "1KiB", 10**9], ["2x2", "2x4", "4"], [32, 96]


@cache
def found() -> WhatIf:
    return autoddl.what_if(
        PROGRAM,
        mesh=MESHES,
        links=LINKS,
        memory=MEMORY,
        batch=BATCHES,
        device=[2.0, 0.25],
        **ONE,
        **GIVEN,
    )


def single(**changes: Any) -> Any:
    """Return the plan of one call of `optimize`."""
    program = changes.pop("program", PROGRAM)
    return autoddl.optimize(program, **{"mesh": "2x2", **ONE, **GIVEN, **changes})


def test_rows_are_what_single_calls_find() -> None:
    known = cluster()
    expected: dict[str, dict[str, Any]] = {
        BASE: {},
        "links of node 2x": {"profile": scaled(known, bandwidth={"node": 2.0})},
        "links of gpu 0.5x, latency of node 10x": {
            "profile": scaled(known, bandwidth={"gpu": 0.5}, latency={"node": 10.0})
        },
        "devices 2x": {"profile": scaled(known, device=2.0)},
        "devices 0.25x": {"profile": scaled(known, device=0.25)},
        "memory 230.0 KiB": {"memory": "230KiB"},
        "memory 953.7 MiB": {"memory": 10**9},
        "mesh 2x4": {"mesh": "2x4"},
        "mesh 4": {"mesh": "4"},
        "batch 32": {"program": mlp(32, (64, 128, 64))},
        "batch 96": {"program": mlp(96, (64, 128, 64))},
    }
    rows = {row.name: row for row in found().variants}
    assert next(iter(rows)) == BASE and rows.keys() - expected.keys() == {"memory 1.0 KiB"}
    for name, changes in expected.items():
        plan, row = single(**changes), rows[name]
        told = row.step_s, row.memory_bytes, row.gap, row.devices
        assert told == (
            plan.estimate.step_s, plan.estimate.memory_bytes, plan.search.gap, plan.devices
        ), name  # fmt: skip
        assert isinstance(row.plan, autoddl.Plan) and row.plan.states == plan.states
        samples = plan.program.tensor[plan.program.inputs[0]].shape[0]
        assert row.samples_per_s == samples / plan.estimate.step_s
        assert row.device_s_per_sample == plan.devices * plan.estimate.step_s / samples
    assert len({row.step_s for row in rows.values()}) > 6  # the variants do matter


def test_what_does_not_fit_is_a_row() -> None:
    (row,) = [row for row in found().variants if row.name == "memory 1.0 KiB"]
    assert row.step_s is row.plan is row.samples_per_s is None
    assert row.note.startswith("does not fit: ") and found().change(row) is None
    text = str(found())
    assert "memory 1.0 KiB: does not fit: " in text.replace("\n", " ")


def test_a_base_that_does_not_fit_has_variants() -> None:
    options = {"mesh": "2", "memory": "100KiB", "pipeline": 1}
    told = autoddl.what_if(mlp(64, (64, 64)), batch=[8], **options, **GIVEN)
    base, small = told.variants
    assert base.step_s is None and small.step_s is not None and told.change(small) is None
    assert base.limit_bytes == small.limit_bytes == 100 << 10
    assert (small.memory_bytes or 0) <= 100 << 10


def test_a_product_has_all_combinations() -> None:
    told = autoddl.what_if(
        PROGRAM, mesh=["2", "4"], links={"gpu": 2.0}, batch=32, product=True, **ONE, **GIVEN
    )
    names = [row.name for row in told.variants]
    assert len(names) == len(set(names)) == 8 and names[0] == BASE
    assert "links of gpu 2x, mesh 4, batch 32" in names
    (last,) = [row for row in told.variants if row.name == "links of gpu 2x, mesh 4, batch 32"]
    plan = single(
        program=with_batch(PROGRAM, 32), mesh="4", profile=scaled(cluster(), bandwidth={"gpu": 2.0})
    )
    assert last.step_s == plan.estimate.step_s


def test_with_a_cluster_all_meshes_are_variants() -> None:
    told = autoddl.what_if(PROGRAM, cluster="2x2", mesh=["4", "2x2"], **GIVEN)
    assert [row.name for row in told.variants] == [BASE, "mesh 4", "mesh 2x2"]
    best = autoddl.optimize(PROGRAM, cluster="2x2", **GIVEN)
    assert told.variants[0].step_s == best.estimate.step_s
    assert told.about.startswith("cluster [node 2][gpu 2], profile made-up, 16.0 GiB per device")


def test_variants_that_can_not_be_planned_do_not_lose_the_others() -> None:
    """SUMMA needs a square grid."""
    told = autoddl.what_if(
        transformer(layers=1), mesh=["2x2", "2"], search="SUMMA", profile=cluster(), budget=LITTLE
    )
    base, other = told.variants
    assert base.step_s is not None and other.step_s is None and "SUMMA" in other.note


def test_micro_batches_and_options_are_those_of_optimize() -> None:
    options = {"mesh": "2", "pipeline": 2, "micro_batches": 4}
    base, _ = autoddl.what_if(PROGRAM, batch=128, **options, **GIVEN).variants
    plan = autoddl.optimize(PROGRAM, **options, **GIVEN)
    assert (base.step_s, base.devices) == (plan.estimate.step_s, 4) and base.samples == 64


def test_it_tells_what_it_plans_and_is_plain_values() -> None:
    said = list[str]()
    told = autoddl.what_if(PROGRAM, mesh="2", batch=[8], progress=said.append, **GIVEN)
    assert said == ["base (1 of 2)", "batch 8 (2 of 2)"]
    rows = json.loads(json.dumps(told.to_json()))
    assert [row["name"] for row in rows] == [BASE, "batch 8"]
    assert rows[1]["step_s"] == told.variants[1].step_s


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            {"mesh": "2"},
            "got 0 variants; allowed are 1 to 199, of links, device, memory, mesh, batch",
        ),
        ({"mesh": "2", "batch": list(range(1, 300))}, "got 299 variants"),
        ({"mesh": "2", "links": {"nod": 2}}, "got level 'nod'"),
        ({"mesh": "2", "links": {"gpu": "fast"}}, "factor: got 'fast'"),
        ({"mesh": "2", "links": "gpu"}, "links: got 'gpu'; allowed are factors by level"),
        ({"mesh": "2", "links": {}}, "links: got {}"),
        ({"mesh": "2", "device": 0}, "got 0; allowed are 0.001 to 1000"),
        ({"mesh": "2", "device": "2x"}, "factor: got '2x'"),
        ({"mesh": "2", "memory": ["lots"]}, "memory: got 'lots'"),
        ({"mesh": ["2", "3y"]}, "3y"),
        ({"mesh": ["2", 2.5]}, "mesh: got 2.5"),
        ({"mesh": "2", "batch": [0]}, "batch: got 0"),
        ({"mesh": "2", "batch": "64"}, "batch: got '64'"),
        ({"mesh": "2", "batch": 8, "msh": "2"}, "got 'msh', which is no option; did you mean mesh"),
        ({"mesh": "2", "batch": 8, "product": 1}, "product: got 1"),
        ({"mesh": "2", "batch": 8, "budget": 0}, "budget: got 0"),
        ({"batch": 8}, "mesh: none given"),
    ],
)
def test_what_is_wrong_is_one_line(words: dict[str, Any], expected: str) -> None:
    with pytest.raises(AutoDDLError) as error:
        autoddl.what_if(PROGRAM, **{**GIVEN, **words})
    assert expected in str(error.value) and str(error.value).isprintable()


def test_names_put_nothing_into_the_terminal() -> None:
    row = replace(found().variants[0], name="[red]a\x1b[31m\u202e", note="\x07[b]x")
    told = replace(found(), about="\x1b]0;x\x07[i]", variants=(row, row))
    text = str(told)
    assert "[red]a\\x1b[31m\\u202e" in text and "\\x07[b]x" in text
    assert text.replace("\n", "").isprintable()
