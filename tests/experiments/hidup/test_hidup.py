"""HiDup's studies: bars, and what plans are counted by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import autoddl
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from experiments.hidup import moe_models
from experiments.hidup.__main__ import STUDIES, command, compared
from experiments.hidup.moe_models import MODELS, PAPER, placement, program, sizes_of
from experiments.lib import cli
from experiments.lib.varied_profiles import as_fast, at_rate
from tests.support.clusters import cluster
from tests.support.model_sizes import parameters
from tests.support.programs import mlp

PROFILE = cluster()
MESH = Mesh.parse("2x2", PROFILE.levels)
PROGRAM = mlp(64, (32, 64, 16))


def test_only_links_between_nodes_change() -> None:
    outer = [link.beta_s_per_byte for link in PROFILE.links if link.level == "node"]
    for profile, beta in (
        (as_fast(PROFILE, 20.0), lambda old: old / min(outer) * 4e-10),
        (at_rate(PROFILE, 20.0), lambda _: 4e-10),
    ):
        for old, new in zip(PROFILE.links, profile.links, strict=True):
            expected = beta(old.beta_s_per_byte) if old.level == "node" else old.beta_s_per_byte
            assert new.beta_s_per_byte == pytest.approx(expected, rel=1e-12)
            assert new.alpha_s == old.alpha_s
    assert as_fast(PROFILE, 0.0) is PROFILE


def test_one_rate_for_all_algorithms_leaves_the_line_of_the_shortest_latency() -> None:
    profile = profiles.load(moe_models.PROFILE)
    found = at_rate(profile, 20.0)
    reduce = [
        link for link in profile.links if (link.level, link.collective) == ("node", "all_reduce")
    ]
    reduce = [link for link in reduce if link.key == reduce[0].key]
    kept = [link for link in found.links if link.key == reduce[0].key]
    assert len(reduce) == 2 and [link.beta_s_per_byte for link in kept] == pytest.approx([4e-10])
    assert kept[0].alpha_s == min(link.alpha_s for link in reduce)


def frame(**fields: Any) -> pd.DataFrame:
    case = {"study": "bandwidths", "model": "BERT-SGMoE", "gpus": 8, "gbit": 20.0, "per_gpu": 32}
    plan = {"halves": False, "step_s": 0.4914, "gap": 0.2, "search_s": 10.0, "expert_s": 0.5}
    return pd.DataFrame([{**case, **plan, **fields}])


def test_bars_of_plans_beside_the_paper() -> None:
    assert compared(frame()).met.tolist() == ["met"] * 3
    late = frame(step_s=0.4916, gap=0.21, search_s=10.1)
    assert compared(late).met.tolist() == ["MISSED"] * 3
    assert compared(frame(halves=True)).empty  # what is printed is of plans of one batch
    at_100 = compared(frame(gbit=100.0, step_s=0.4, expert_s=0.5)).set_index("what")
    assert at_100.loc["100 Gbit/s: s per step", "met"] == "met"
    assert at_100.filter(like="table 4", axis=0).ours.tolist() == [1.25]


def test_every_comparison_has_a_case_of_its_study() -> None:
    for one in PAPER["compared"]:
        cases = pd.DataFrame([vars(case) for case in STUDIES[one["study"]].cases])
        assert len(cases[cases.model.str.startswith(one["model"])].query(one["where"])), one["what"]


def test_machines_of_eight_gpus() -> None:
    meshes = {case.gpus: case.mesh for case in STUDIES["scaling"].cases}
    assert meshes == {2: "2", 4: "4", 8: "8", 16: "2x8", 32: "4x8", 64: "8x8"}
    assert {case.mesh for case in STUDIES["bandwidths"].cases} == {"2x4"}


def test_a_point_that_no_study_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--points", "7", "--folder", str(tmp_path)]
    assert cli.run(command, "hidup", argv) == 2
    assert capsys.readouterr().err == "hidup: --points 7: none of these studies has such a case\n"


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
@pytest.mark.parametrize("model", MODELS)
def test_parameters_of_the_models_are_those_of_table_1(model: str) -> None:
    sizes = sizes_of(model, 4)
    second = (
        sizes.get("vocabulary", 0) * sizes["width"]
    )  # the paper's output has a table of its own
    fixed, by_gpu = MODELS[model]["millions"]
    every = parameters(MODELS[model]["zoo"], **sizes)
    assert (every + second) / 1e6 == pytest.approx(fixed + 4 * by_gpu, rel=0.01)


@pytest.mark.oneflow
def test_a_step_has_the_parameters_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**sizes_of("ViT-Switch", 4), "layers": 2}
    monkeypatch.setattr(moe_models, "sizes_of", lambda *_: sizes)
    step = program("ViT-Switch", tmp_path, 4)
    every = sum(step.tensor[p.tensor].elements for p in step.parameters if p.update)
    assert every == parameters("vit_moe", **sizes)
