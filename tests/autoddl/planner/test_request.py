"""What is said of a request before anything is searched."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from autoddl.planner.request import read
from tests.support.clusters import cluster
from tests.support.programs import mlp


@pytest.mark.parametrize(
    ("mesh", "known", "told"),
    [
        ("2x2", {}, "over level node, gpu overlap with ops is assumed"),
        ("2x2", {"node": 0.5}, "over level gpu overlap with ops is assumed"),
        ("2x2", {"node": 0.5, "gpu": 1.0}, ""),
        ("[node 2]", {"node": 0.5}, ""),  # no link of the other level is used
    ],
)
def test_overlap_that_was_not_measured_is_told_of(
    mesh: str, known: dict[str, float], told: str, tmp_path: Path
) -> None:
    file = tmp_path / "profile.json"
    cluster(overlap=known).save(file)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read(mlp(), mesh=mesh, profile=file)
    texts = [str(one.message) for one in said]
    assert len(texts) == bool(told)
    assert all(told in text and str(file) in text and "\n" not in text for text in texts)
