"""Published rows: what they say of a step, the statistics of a made-up table, what the command tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from autoddl.errors import AutoDDLError
from experiments.lib.layer_cuts import even_layers
from experiments.published import __main__ as published
from experiments.published import published_rows, published_scores, titan_rows
from experiments.published.published_programs import trained
from experiments.published.published_rows import Degrees, PublishedRow

ROW: dict[str, Any] = {
    "id": "one", "source": "Oneflow-Inc/libai docs", "engine": "OneFlow 0.8", "model": "GPT-2",
    "layers": 2, "width": 32, "heads": 4, "sequence": 16, "vocabulary": 64,
    "precision": "float16 AMP", "recompute": "no", "dp": 1, "tp": 1, "pp": 1, "nodes": 1,
    "gpus_per_node": 1, "batch_per_step": 4, "micro_batch": 4, "samples_per_s": 100.0,
}  # fmt: skip


def row(**told: Any) -> PublishedRow:
    return PublishedRow.of({**ROW, **told})


def test_a_row_tells_its_micro_batches_and_its_step() -> None:
    found = row(dp=4, gpus_per_node=4, batch_per_step=1024, micro_batch=128)
    assert (found.samples, found.micro_batches, found.step_s) == (512, 2, pytest.approx(10.24))
    assert row(layers=float("nan")).layers == 0
    assert [row(engine=name).is_oneflow for name in ("OneFlow 0.3.5", "Megatron-LM 2022")] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("degrees", "mesh"),
    [
        ((1, 1, 1, 1, 1), "[gpu 1]"), ((16, 1, 1, 2, 8), "[node 2][gpu 8]"), ((1, 4, 1, 1, 4), "[gpu 4]"),
        ((2, 4, 4, 4, 8), "[gpu 2][gpu 4]"), ((8, 2, 1, 2, 8), "[node 2][gpu 4][gpu 2]"),
        ((1, 8, 4, 4, 8), "[gpu 8]"), ((2, 1, 4, 1, 8), "[gpu 2]"),
    ],
)  # fmt: skip
def test_a_stage_has_neighbours(degrees: tuple[int, ...], mesh: str) -> None:
    assert Degrees(*degrees).mesh.describe() == mesh


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"dp": 2}, "row one: got 2x1x1 on 1 nodes of 1 devices"),
        ({"tp": 4, "nodes": 2, "gpus_per_node": 2}, "row one: got 1x4x1 on 2 nodes of 2 devices"),
        ({"batch_per_step": 6}, "row one: got a batch of 6; allowed are multiples of 4"),
    ],
)
def test_rows_that_cannot_be_are_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(AutoDDLError, match=said):
        row(**told)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match=r"no torchtitan_h100\.csv; give the folder"):
        published_rows.lines(tmp_path, "torchtitan_h100")


def test_a_row_is_trained_as_its_source_trains() -> None:
    masked = trained(row(model="BERT-base, masked positions 20 of 128, clipped"))
    assert (masked.model, dict(masked.sizes)["predicted"], masked.loss_scale) == ("bert", 20, True)
    plain, mixed = (
        trained(row(model="ResNet-50 v1.5", precision=text)) for text in ("float32", "float16 AMP")
    )
    assert [dict(one.sizes)["fused"] for one in (plain, mixed)] == [False, True]
    assert trained(row(model="BERT")).model == "fused_bert"
    assert not plain.loss_scale


def test_stages_have_as_many_layers_each() -> None:
    assert even_layers(12, 4) == (3, 6, 9)
    assert even_layers(24, 1) == ()


def test_reasons_name_all_that_is_not_known() -> None:
    found = titan_rows.reason({"recompute": "full", "precision": "float8", "compiled": "yes"})
    recomputed = titan_rows.REASONS["recompute"][1]
    assert found.startswith(f"{recomputed}; float8 is no type of ours; kernels of")


def frame() -> pd.DataFrame:
    """Return rows of 1, 2 and 4 devices with 10, 9 and 8 samples a second each, predicted as 10, 9.5, 9.

    Beside is a row of another engine, and one without a prediction.
    """
    told = []
    for devices, measured, predicted in ((1, 10.0, 10.0), (2, 9.0, 9.5), (4, 8.0, 9.0)):
        told.append({
            "engine": "OneFlow", "source": "made up", "model": "m", "precision": "float32",
            "devices": devices, "micro_batch": 5, "batch": 5 * devices, "data_parallel": True,
            "measured_s": 5 / measured, "predicted_s": 5 / predicted, "reason": "", "degrees": "",
        })  # fmt: skip
    other = {**told[0], "engine": "Megatron-LM", "predicted_s": 100.0}
    return pd.DataFrame([*told, other, {**told[0], "predicted_s": None, "reason": "why"}])


def test_scores_are_of_rows_of_oneflow_with_a_prediction() -> None:
    mine = published_scores.expressed(frame())
    assert mine.predicted_pace.tolist() == pytest.approx([10.0, 9.5, 9.0])
    found = published_scores.errors(mine)
    assert found.group.tolist() == ["made up m float32", "all"]
    off = [0.0, 1 - 9 / 9.5, 1 - 8 / 9]
    assert found.mean_error[0] == pytest.approx(sum(off) / 3)
    assert found.median_error[1] == pytest.approx(off[1])
    assert found.bias[0] == pytest.approx(-off[1])
    assert found.spearman[0] == pytest.approx(1.0)
    scaled = published_scores.efficiencies(mine)
    assert scaled.measured.tolist() == pytest.approx([0.9, 0.8])
    assert scaled.off.tolist() == pytest.approx([5.0, 10.0])


@pytest.mark.oneflow
def test_every_row_has_a_prediction_or_a_reason(tmp_path: Path) -> None:
    """A plan has one prediction, whichever engine ran it; what it cannot express is printed, too."""
    many = {"dp": 4, "nodes": 2, "gpus_per_node": 2, "batch_per_step": 16}
    given = [
        ROW, {**ROW, **many, "id": "four"}, {**ROW, "id": "other", "engine": "Megatron-LM 2022"},
        {**ROW, "id": "again", "recompute": "each layer"},
        {**ROW, **many, "id": "three axes", "dp": 2, "tp": 2, "batch_per_step": 16},
    ]  # fmt: skip
    pd.DataFrame(given).to_csv(tmp_path / "oneflow_gpu_clusters.csv", index=False)
    wide = {
        "id": "wide", "devices": 2, "batch_per_step": 64, "deep_vocabulary": 1024,
        "embedding_width": 8, "hidden_layers": 2, "step_ms": 1.0, "memory_mb": 10,
    }  # fmt: skip
    pd.DataFrame([wide]).to_csv(tmp_path / "wide_and_deep_oneflow_0.6.csv", index=False)
    titan = {
        "id": "titan", "model": "Llama", "gpus": 8, "precision": "bfloat16", "recompute": "full",
        "compiled": "no", "tokens_per_s_per_gpu": 5, "memory_gib": 1.0,
    }  # fmt: skip
    pd.DataFrame([titan]).to_csv(tmp_path / "torchtitan_h100.csv", index=False)
    words = ["--data", str(tmp_path), "--folder", str(tmp_path / "out")]
    done = CliRunner().invoke(published.command, words, catch_exceptions=False)
    assert done.exit_code == 0
    found = pd.read_csv(tmp_path / "out" / "published.csv").set_index("id")
    assert found.predicted_s["one"] == found.predicted_s["other"] > 0
    assert found.micro_batches["three axes"] == 2
    assert (found.predicted_s.notna() ^ found.reason.notna()).all()
    assert found.compute_s["again"] > 1.1 * found.compute_s["one"]
    (predicted,) = pd.read_csv(tmp_path / "out" / "wide_and_deep.csv").predicted_s
    assert predicted > 0
    assert "steps of OneFlow: 4 of 4 rows predicted" in done.output
    assert all(name in done.output for name in ("Wide & Deep", "torchtitan"))
