"""What is said of a request before anything is searched."""

from __future__ import annotations

import warnings
from dataclasses import replace
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


def test_a_half_precision_that_the_profile_has_no_rate_of_is_told_of() -> None:
    program = mlp()
    halved = tuple(
        replace(t, dtype="bfloat16") if t.role == "activation" else t for t in program.tensors
    )
    with pytest.warns(
        UserWarning, match="profile v100-8x: no rate of bfloat16, so its ops"
    ) as said:
        read(replace(program, tensors=halved), mesh="2x2", profile="v100-8x")
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(replace(program, tensors=halved), mesh="2x2", profile="h100")
