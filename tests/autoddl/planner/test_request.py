"""What is said of a request before anything is searched."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replaced

from autoddl.errors import AutoDDLError
from experiments.lib.oneflow_problems import read
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


ACCUMULATED = "2 micro-batches, over which the graph accumulates gradients"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"accumulated": 2, "objective": "communication"},
            f"objective: got 'communication' with {ACCUMULATED}; with stages or micro-batches the "
            "allowed objective is 'time', the time of a step",
        ),
        ({"accumulated": 2, "search": "ZeRO 2"}, f"search: got 'ZeRO 2' with {ACCUMULATED}"),
        ({"accumulated": 2, "micro_batches": 4}, f"micro_batches: got 4 with {ACCUMULATED}; leave"),
        ({"accumulated": 2, "duplex": True}, f"duplex: got True with {ACCUMULATED}"),
        ({"micro_batches": 4, "objective": "sum"}, "objective: got 'sum' with micro_batches=4; "),
        ({"pipeline": 2, "objective": "sum"}, "objective: got 'sum' with pipeline=2; "),
        (
            {"pipeline": "auto", "search": "Megatron"},
            "search: got 'Megatron' with pipeline='auto'; ",
        ),
        (
            {"device": "cuda", "accumulated": 2, "compute_stream": False},
            f"compute_stream: got False with {ACCUMULATED}; OneFlow runs the boxings of these on the "
            "compute stream; leave it out",
        ),
    ],
)
def test_options_that_contradict_each_other_are_both_named(
    options: dict[str, Any], said: str
) -> None:
    program = replace(mlp(), device=options.pop("device", "cpu"))
    profile = replaced(cluster(), device_type=program.device)
    with pytest.raises(AutoDDLError) as caught:
        read(program, mesh="2", profile=profile, **options)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("fusion", "device", "said"),
    [
        ("16,0", "cuda", "fusion: got '16,0'; allowed is 'MIB,NUMBER', up to 1024 MiB and 2048"),
        ("2000,64", "cuda", "fusion: got '2000,64'; allowed is 'MIB,NUMBER'"),
        (16, "cuda", "fusion: got 16; allowed is 'MIB,NUMBER'"),
        (
            "16,64",
            "cpu",
            "fusion: got '16,64' on device 'cpu', where OneFlow joins no collectives; ",
        ),
    ],
)
def test_launches_that_can_not_be(fusion: Any, device: str, said: str) -> None:
    profile = replaced(cluster(), device_type=device)
    with pytest.raises(AutoDDLError) as caught:
        read(replace(mlp(), device=device), mesh="2", profile=profile, fusion=fusion)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_allowed_is_what_is_not_refused() -> None:
    """What an error lists as allowed beside stages is taken beside them."""
    with pytest.raises(AutoDDLError) as caught:
        read(mlp(), mesh="2", profile=cluster(), pipeline=2, search="Megatron")
    _, allowed = str(caught.value).split("allowed searches are ")
    for search in allowed.split(", "):
        read(mlp(), mesh="2", profile=cluster(), pipeline=2, search=search)
