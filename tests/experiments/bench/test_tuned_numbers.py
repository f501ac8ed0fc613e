"""Tuned numbers are measured one at a time, by work alone, and are afterwards what they were."""

from __future__ import annotations

from autoddl.sbp.mesh import Mesh
from autoddl.search.step import tuning
from experiments.bench.tuned_numbers import NUMBERS, searched
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import transformer


def test_rows_are_the_same_each_time_and_numbers_stay() -> None:
    before = {name: getattr(tuning, name) for name in NUMBERS}
    network = build(transformer(2), Mesh.parse("2x2"), cluster())
    rows, again = (list(searched(network, ("PATIENCE", "LATEST"), 300)) for _ in range(2))
    assert rows == again
    assert [(row["number"], row["value"]) for row in rows] == [
        ("PATIENCE", 3), ("PATIENCE", 1), ("PATIENCE", 6), ("LATEST", 0.25), ("LATEST", 1.0),
    ]  # fmt: skip
    assert {name: getattr(tuning, name) for name in NUMBERS} == before
