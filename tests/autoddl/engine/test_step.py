"""Plans on real ranks: the same numbers as one device, in every way a user may run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoddl.engine.launch import launch

pytestmark = pytest.mark.oneflow

SCRIPTS = Path(__file__).parent / "rank_scripts"


@pytest.fixture(scope="module", params=["4", "2x2"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("step")
    command = [str(SCRIPTS / "check_step.py"), str(out), request.param]
    launch(command, nproc_per_node=4, timeout_s=120, env=_path(), check=True)
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(4)]


def test_every_rank_has_the_same_plan(seen: Any) -> None:
    assert all(rank["plan"] == seen[0]["plan"] for rank in seen)


def test_losses_are_those_of_one_device_however_the_batch_is_fed(seen: Any) -> None:
    for rank in seen:
        assert rank["global"] is True
        assert rank["losses"] == pytest.approx(rank["reference"], abs=1e-5)


def test_tensors_may_wait_for_the_backward_pass_in_any_state(seen: Any) -> None:
    for rank in seen:
        assert rank["waiting"] == pytest.approx(rank["reference"], abs=1e-5)
        assert (
            min(rank["late"]) > 2
        )  # of boxings that come in the backward pass, and of some before


def test_trained_weights_survive_save_and_load(seen: Any) -> None:
    assert all(rank["weights"] < 1e-5 for rank in seen)


def test_the_engine_executes_every_planned_signature(seen: Any) -> None:
    assert all(rank["changed"] == [] for rank in seen)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("short", ("(4, 8)", "(8, 8)", "whole logical batch")),
        ("wrong part", ("(3, 8)", "local_slice")),
        ("ranks", ("2 devices", "4 ranks", "--nproc-per-node 2")),
        ("another graph", ("no variable model.blocks.1", "plan again")),
        ("abstract", ("abstract_parameters()", "build it outside")),
        ("another graph, same variables", ("made for graph", "plan again")),
    ],
)
def test_bad_input_gets_one_line_on_every_rank(
    seen: Any, what: str, words: tuple[str, ...]
) -> None:
    for rank in seen:
        assert "\n" not in rank[what]
        assert all(word in rank[what] for word in words), rank[what]


def test_ops_without_a_rule_are_split_as_the_engine_says(tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    command = [str(SCRIPTS / "unknown_op.py"), str(out)]
    launch(command, nproc_per_node=2, timeout_s=60, env=_path(), check=True)
    seen = json.loads(out.read_text())
    assert seen["losses"] == pytest.approx(seen["reference"], abs=1e-6)
    assert seen["states"] == {name: ["(S0)"] for name in ("mish", "mish_grad", "celu", "celu_grad")}
    assert seen["changed"] == []
    assert len(seen["warnings"]) == 1
    assert "OneFlow's own signatures" in seen["warnings"][0]
    for name in ("mish (1)", "mish_grad (1)", "celu (1)", "celu_grad (1)"):
        assert name in seen["warnings"][0]
        assert name in seen["strict"]
    assert "register_rule" in seen["strict"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_users_script_runs_under_both_launchers(ranks: int, tmp_path: Path) -> None:
    script, losses = str(SCRIPTS / "train_once.py"), []
    for number, name in enumerate(("autoddl run", "oneflow.distributed.launch")):
        out = tmp_path / str(number)
        option = "--nproc-per-node" if number == 0 else "--nproc_per_node"
        command = [sys.executable, "-m", *name.split(), option, str(ranks), script, str(out)]
        if number == 1:
            command[-2:-2] = ["--master_port", str(_free_port())]
        done = subprocess.run(
            command, env=_path(whole=True), timeout=120, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        mesh, loss = out.read_text().split()
        assert mesh == str(ranks)
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what one process and four ranks saw of dropout and of a local BatchNorm."""
    seen = {}
    for count in (1, 4):
        out = tmp_path_factory.mktemp(f"exact{count}")
        command = [str(SCRIPTS / "exactness.py"), str(out)]
        launch(command, nproc_per_node=count, timeout_s=90, env=_path(), check=True)
        seen[count] = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(count)]
    return seen


def test_dropout_draws_the_mask_of_one_device(exact: Any) -> None:
    expected = exact[1][0]["dropout"]["losses"]
    assert len(set(expected)) == 4  # another mask in every step
    for rank in exact[4]:
        assert rank["dropout"]["losses"] == pytest.approx(expected, abs=1e-6)
        (states,) = (
            s for name, s in rank["dropout"]["states"].items() if name.endswith("dropout-2")
        )
        assert set(states.values()) == {"(B, B)"}


def test_a_local_batchnorm_is_cut_and_right_where_its_statistics_are(exact: Any) -> None:
    expected = exact[1][0]["norm"]["losses"]
    for rank in exact[4]:
        assert rank["norm"]["losses"] == pytest.approx(expected, abs=1e-5)
        states = [s for s in rank["norm"]["states"].values() if "inv_variance_0" in s]
        assert [s["x_0"] for s in states] == ["(S0, S0)"] * 2
        assert [s["mean_0"] for s in states] == ["(B*, B*)"] * 2


def _path(*, whole: bool = False) -> dict[str, str]:
    """Return what lets a rank import `experiments` (with the rest of the environment)."""
    import os

    root = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": root} if whole else {"PYTHONPATH": root}


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
