"""What fits: the first of all clusters, and the largest of all batches, by plans of every one of them."""

from __future__ import annotations

from typing import Any

import pytest

import autoddl
from autoddl.compare.within_target import Target, clusters_of, target_of
from autoddl.errors import AutoDDLError
from autoddl.sbp.rewrites.micro_batch import with_batch
from tests.support.clusters import cluster
from tests.support.programs import mlp

PROGRAM = mlp(512, (512, 512, 512))
GIVEN: dict[str, Any] = {"profile": cluster(), "budget": autoddl.Budget(evaluations=500)}


def steps(clusters: list[str]) -> list[float]:
    plans = [autoddl.optimize(PROGRAM, cluster=each, **GIVEN) for each in clusters]
    return [plan.estimate.step_s for plan in plans]


def test_the_smallest_cluster_is_the_first_that_is_fast_enough() -> None:
    clusters = ["1x1", "1x2", "1x4", "2x4"]
    known = steps(clusters)
    assert len(set(known)) > 2
    for target_s in (min(known), sorted(known)[1], max(known)):
        told = autoddl.fit(PROGRAM, step=target_s, node_size=4, most=8, **GIVEN)
        first = next(n for n, step_s in enumerate(known) if step_s <= target_s)
        assert told.best is not None and told.best.name == f"cluster {clusters[first]}"
        assert [row.step_s for row in told.tried] == known[: first + 1]
    told = autoddl.fit(PROGRAM, step=min(known) / 2, clusters=["2x4", "1x2"], **GIVEN)
    assert told.best is None and [row.devices for row in told.tried] == [2, 8]  # small ones first
    assert "none of these meets it" in str(told)


def test_throughput_and_memory_count() -> None:
    known = steps(["1x1", "1x2"])
    rate = 512 / known[1]
    told = autoddl.fit(PROGRAM, throughput=rate, clusters=["1x1", "1x2"], **GIVEN)
    assert told.best is not None and told.best.name == "cluster 1x2"
    assert isinstance(told.best.plan, autoddl.Plan)
    assert told.best.samples_per_s == rate
    need = autoddl.optimize(PROGRAM, cluster="1x1", **GIVEN).estimate.memory_bytes
    told = autoddl.fit(
        PROGRAM, step=1.0, memory=need - 1, clusters=["1x1", "2x2"], pipeline=1, **GIVEN
    )
    assert told.tried[0].step_s is None and told.tried[0].note.startswith("does not fit: ")
    assert told.best is not None and told.best.name == "cluster 2x2"


@pytest.mark.parametrize("most_s", [None, 2.5e-4])
def test_the_largest_batch_is_that_of_a_walk_through_all(most_s: float | None) -> None:
    """Batches of 2, 4, … samples on two devices, within memory and with or without a time."""
    program, limit = mlp(8, (64, 64)), 100_000
    options = {**GIVEN, "mesh": "2", "memory": limit, "pipeline": 1}

    def meets(batch: int) -> bool:
        try:
            plan = autoddl.optimize(with_batch(program, batch), **options)
        except AutoDDLError:
            return False
        return most_s is None or plan.estimate.step_s <= most_s

    told = autoddl.fit(program, batch="largest", step=most_s, **options)
    assert told.best is not None and told.best.samples is not None
    largest = told.best.samples
    assert meets(largest) and 8 < largest < 1000
    over = [row.samples or 0 for row in told.tried if not told.target.met(row)]
    assert not any(meets(each) for each in over)
    assert min(over) - largest <= max(2, largest // 16)


def test_a_batch_that_is_too_large_goes_down() -> None:
    program = mlp(4096, (64, 64))
    told = autoddl.fit(program, batch="largest", mesh="2", memory=300_000, pipeline=1, **GIVEN)
    assert told.best is not None and 0 < (told.best.samples or 0) < 4096
    assert told.tried[0].step_s is None and told.tried[0].samples == 4096
    none = autoddl.fit(program, batch="largest", mesh="2", memory=1000, pipeline=1, **GIVEN)
    assert none.best is None and "none of these meets it" in str(none)


def test_clusters_are_powers_of_two() -> None:
    assert clusters_of(8, 64) == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8)]
    assert clusters_of(8, 5) == [(1, 1), (1, 2), (1, 4)]
    assert clusters_of(6, 24) == [(1, 1), (1, 2), (1, 4), (1, 6), (2, 6), (4, 6)]
    assert clusters_of(1, 4) == [(1, 1), (2, 1), (4, 1)]


def test_targets_in_words() -> None:
    assert target_of("100ms", None) == target_of(0.1, None) == Target(0.1)
    assert target_of("250 us", 1e3) == Target(250e-6, 1000.0)
    assert str(target_of("1.5s", 20)) == "a step within 1.50 s and 20 samples/s or more and memory"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, "fit: no target; give step='100ms'"),
        ({"step": "fast"}, "step: got 'fast'"),
        ({"step": 0}, "step: got 0"),
        ({"step": "-1s"}, "step: got '-1s'"),
        ({"step": float("inf")}, "step: got inf"),
        ({"throughput": "many"}, "throughput: got 'many'"),
        ({"throughput": -1.0}, "throughput: got -1.0"),
        (
            {"step": 1, "mesh": "2"},
            "fit: got a mesh or cluster, of which the smallest is looked for",
        ),
        ({"step": 1, "clusters": []}, "clusters: got []"),
        ({"step": 1, "clusters": "1x4"}, "clusters: got '1x4'; allowed is a list"),
        ({"step": 1, "clusters": ["2y2"]}, "2y2"),
        ({"step": 1, "node_size": 0}, "node_size: got 0"),
        ({"step": 1, "most": "many"}, "most: got 'many'"),
        ({"step": 1, "batch": 64}, "batch: got 64; allowed is 'largest'"),
        ({"step": 1, "batch": "largest"}, "mesh: none given"),
        ({"step": 1, "stp": 1}, "got 'stp', which is no option"),
    ],
)
def test_what_is_wrong_is_one_line(words: dict[str, Any], expected: str) -> None:
    with pytest.raises(AutoDDLError) as error:
        autoddl.fit(PROGRAM, **{**GIVEN, **words})
    assert expected in str(error.value) and str(error.value).isprintable()
