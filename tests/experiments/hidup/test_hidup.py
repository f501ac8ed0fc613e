"""HiDup's studies: wrong costs against sums by hand, bars, and what plans are counted by."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import autoddl
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import from_json
from autoddl.perfmodel.topology import Crossing
from autoddl.planner.costs.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import assignments
from autoddl.search.network.builder import build
from experiments.hidup import against, bandwidths, growth, noise
from experiments.hidup.clusters import at_rate, rate, scaled
from experiments.hidup.moe_plans import placement
from experiments.lib import cli
from tests.support.clusters import cluster
from tests.support.programs import mlp

PROFILE = cluster()
MESH = Mesh.parse("2x2", PROFILE.levels)
PROGRAM = mlp(64, (32, 64, 16))


def test_only_links_between_nodes_change() -> None:
    for profile, beta in (
        (scaled(PROFILE, 2.0), lambda old: old / 2),
        (at_rate(PROFILE, 20.0), lambda _: 4e-10),
    ):
        for old, new in zip(PROFILE.links, profile.links, strict=True):
            expected = beta(old.beta_s_per_byte) if old.level == "node" else old.beta_s_per_byte
            assert new.beta_s_per_byte == pytest.approx(expected, rel=1e-15)
            assert new.alpha_s == old.alpha_s
    assert rate(at_rate(PROFILE, 20.0)) == pytest.approx(20.0)
    assert rate(scaled(PROFILE, 2.0)) == pytest.approx(2 * rate(PROFILE))


def test_every_op_has_its_own_factor() -> None:
    right = build(PROGRAM, MESH, PROFILE)
    factors = 1 + 0.5 * np.random.default_rng(0).uniform(-1, 1, len(PROGRAM.ops))
    wrong = noise.noisy(right, factors)
    for start in assignments(right).values():
        true, off = Assigned(right, start), Assigned(wrong, start)
        prices = true.timeline.cost.ops.rows()
        by_hand = sum(p.seconds * f for p, f in zip(prices, factors, strict=True))
        assert off.costs_s[0] == pytest.approx(by_hand, rel=1e-12)
        assert off.timeline.compute_s.sum() == pytest.approx(by_hand, rel=1e-12)
        assert off.costs_s[1] == true.costs_s[1]
    same = noise.noisy(right, np.ones(len(PROGRAM.ops)))
    assert Assigned(same, start).step_s == Assigned(right, start).step_s


def test_links_are_slower_as_a_whole() -> None:
    slow = noise.slower(PROFILE, 1.5)
    for link in PROFILE.links:
        way = Crossing(link.level, link.group_size)
        for size in (0.0, 1e6):
            took, takes = (p.collective_s(link.collective, way, size) for p in (PROFILE, slow))
            assert takes == pytest.approx(1.5 * took, rel=1e-12)
    assert slow.device == PROFILE.device


def test_what_is_found_under_the_right_costs_is_no_slower_than_a_baseline() -> None:
    right = build(PROGRAM, MESH, PROFILE)
    found = Assigned(right, noise.searched(right, 2.0)).step_s
    assert found <= min(Assigned(right, start).step_s for start in assignments(right).values())


def test_a_bar_of_the_noise_is_missed() -> None:
    of = noise.Noise(noise.COMMUNICATION, 0.5)
    assert [noise.summary(of, [ratio])["met"] for ratio in (1.1, 1.11)] == ["met", "MISSED"]
    assert noise.summary(noise.Noise(noise.RANDOM, 0.5), [9.0])["met"] == ""
    assert of.name == "+50% communication"


@pytest.mark.parametrize(
    "argv", [["--random", "1.0"], ["--communication", "-1"], ["--random", "x"]]
)
def test_noise_out_of_range(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(noise.command, "hidup.noise", [*argv, "--folder", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hidup.noise: {argv[0]}: got ") and err.count("\n") == 1


def test_bars_of_the_case() -> None:
    row = {"step_s": 0.4914, "gap": 0.2, "search_s": 10.0}
    assert [met for *_, met in bandwidths.bars({20.0: row})] == [True, True, True]
    late = {**row, "step_s": 0.4916, "gap": 0.21, "search_s": 10.1}
    assert [met for *_, met in bandwidths.bars({20.0: late})] == [False, False, False]
    assert [what for what, *_ in bandwidths.bars({5.0: row})] == ["BERT-SGMoE at 5 Gbit/s: step"]


def test_time_may_grow_as_layers_do_and_hardly_with_gpus() -> None:
    def rows(group: str, sizes: list[int], seconds: list[float]) -> list[dict[str, object]]:
        return [
            {"group": group, "objective": "time", "size": size, "seconds": s}
            for size, s in zip(sizes, seconds, strict=True)
        ]

    layers = rows(growth.LAYERS, [4, 32], [1.0, 8.0])
    gpus = rows(growth.GPUS, [8, 512, 8192], [1.0, 2.1, 1.0])
    assert list(growth.bars([*layers, *gpus])) == [
        ("time, 4 to 32 layers", 8.0, 8.0, True),
        ("time, 8 to 8192 GPUs", 2.1, growth.FLAT, False),
    ]
    runs = [{"seconds": s, "gap": s / 10} for s in (3.0, 1.0, 2.0)]
    assert growth.median(runs) == {"seconds": 2.0, "gap": 0.2, "runs": 3}


def test_the_mean_gain_is_geometric_and_a_slower_plan_is_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"model": "a", "mesh": "2", "rate": 1.0, "old_s": 2.0, "now_s": 1.0},
        *({"model": "a", "mesh": "2x2", "rate": r, "old_s": 1.0, "now_s": 1.0}
          for r in against.FACTORS),
    ]  # fmt: skip
    for row in rows:
        row |= {"gap": 0.0, "baselines": 5, "alike": 4, "again": "", "error": ""}
    assert against.report(pd.DataFrame(rows), tmp_path) == 0
    text = capsys.readouterr().out
    # one gain of 2 in 4 pairs, and three times it in 6 where rates do not matter
    assert f"{2 ** (1 / 4) - 1:+.2%}" in text and f"{math.sqrt(2) - 1:+.2%}" in text
    assert against.report(pd.DataFrame([*rows, {**rows[0], "now_s": 2.1}]), tmp_path) == 1


def test_pairs_of_a_mesh_inside_a_node_come_once(tmp_path: Path) -> None:
    found = list(against.cases(["mlp"], ["4", "2x4"], 4.0, tmp_path))
    assert [case.name for case in found] == [
        "mlp 4 1",
        *(f"mlp 2x4 {f:g}" for f in against.FACTORS),
    ]
    for case in found:  # an older checkout is given the same numbers, in the version that it reads
        now = Path(case.task["profile"])
        assert now.parent == tmp_path
        old = now.with_name(now.name.removesuffix(against.NEW) + against.OLD)
        assert b'"version": 2' in old.read_bytes() and b"digest" not in old.read_bytes()
        assert from_json(old.read_bytes(), "old") == profiles.load(now)


def test_parameters_are_counted_by_where_they_are_whole() -> None:
    pins = {"*weight": "B,S0"}
    plan = autoddl.optimize(PROGRAM, mesh="2x2", profile=PROFILE, pin=pins, budget=2.0)
    weights = sum(p.tensor.endswith("weight") for p in PROGRAM.parameters)
    found = placement(plan)
    assert found["partly"] >= weights and found["whole_between"] >= weights
    whole = autoddl.optimize(PROGRAM, mesh="2x2", profile=PROFILE, search="data parallel")
    count = len(PROGRAM.parameters)
    expected = {"replicated": count, "cut": 0, "partly": 0, "whole_between": count}
    assert placement(whole) == expected


@pytest.mark.oneflow
@pytest.mark.slow
def test_parameters_of_the_models_are_those_of_table_1(tmp_path: Path) -> None:
    from experiments.hidup.moe_models import table1

    table = table1(tmp_path, gpus=4)
    assert table.off.abs().max() < 0.01
