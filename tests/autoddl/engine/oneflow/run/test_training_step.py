"""Plans on real ranks: the same numbers as one device, in every way a user may run them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoddl.launch.launcher import launch
from tests.support.on_ranks import LIMIT_S, Launched, environment, seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

SCRIPTS = Path(__file__).parent / "rank_scripts"


SETTINGS = ("2x2", "stages", "halves")
Seen = Callable[[str], Any]


def settings(*names: str) -> Any:
    """Parametrise a test with plans; what it asks of the nested mesh is in the quick part."""
    smoke = {"2x2": pytest.mark.smoke}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=smoke.get(n, ())) for n in names])


@pytest.fixture
def seen(launched: Launched) -> Seen:
    """Return what gives what each rank saw of a plan that is fed, saved, loaded and misused."""
    return lambda name: seen_by(4, launched("use_plan", name, ranks=4))


@settings(*SETTINGS)
def test_every_rank_has_the_same_plan(seen: Seen, name: str) -> None:
    one, *others = seen(name)
    assert all(rank["plan"] == one["plan"] for rank in others)


@settings(*SETTINGS)
def test_losses_are_those_of_one_device_however_the_batch_is_fed(seen: Seen, name: str) -> None:
    for rank in seen(name):
        assert rank["global"] is True
        assert len(set(rank["reference"])) == 5
        assert rank["losses"] == pytest.approx(rank["reference"], abs=1e-5)
        if name != "2x2":  # whose inputs are not pinned
            assert set(rank["inputs"]) in ({"(S0)"}, {"(S0, S0)"})


@settings("2x2")
def test_tensors_may_wait_for_the_backward_pass_in_any_state(seen: Seen, name: str) -> None:
    for rank in seen(name):
        assert rank["waiting"] == pytest.approx(rank["reference"], abs=1e-5)
        # Of boxings that come in the backward pass, and of some before.
        assert min(rank["late"]) > 2


@settings("2x2")
def test_ops_may_go_in_another_order(seen: Seen, name: str) -> None:
    for rank in seen(name):
        assert rank["ordered"] == pytest.approx(rank["reference"], abs=1e-5)


@settings(*SETTINGS)
def test_trained_weights_survive_save_and_load(seen: Seen, name: str) -> None:
    for rank in seen(name):
        assert rank["trained"] < 1e-5
        assert rank["loaded"] < 1e-5


@settings(*SETTINGS)
def test_the_engine_executes_every_planned_signature(seen: Seen, name: str) -> None:
    assert all(rank["changed"] == [] for rank in seen(name))


BAD = {
    "2x2": {
        "short": ("(4, 8)", "(8, 8)", "whole logical batch"),
        "wrong part": ("(3, 8)", "local_slice"),
        "ranks": ("2 devices", "4 ranks", "--nproc-per-node 2"),
        "another graph": ("no variable model.", "plan again"),
        "abstract": ("model.0.weight was built inside abstract_parameters()", "load a checkpoint"),
        "another graph, same variables": ("made for graph", "plan again"),
    },
    "stages": {
        "short": ("(4, 8)", "(8, 8)", "whole logical batch"),
        "wrong part": ("(3, 8)", "(4, 8)", "local_slice(rank)", "micro-batch"),
        "ranks": ("4 stages of mesh 2", "8 devices", "4 ranks", "--nproc-per-node 8"),
    },
    "halves": {
        "short": ("(4, 8)", "(8, 8)", "whole logical batch"),
        "wrong part": ("(3, 8)", "local_slice"),
    },
}


@settings(*SETTINGS)
def test_bad_input_gets_one_line_on_every_rank(seen: Seen, name: str) -> None:
    for rank in seen(name):
        for what, words in BAD[name].items():
            assert "\n" not in rank[what]
            assert all(word in rank[what] for word in words), (what, rank[what])


@pytest.mark.smoke
def test_halves_in_turn_train_as_the_batch_does(launched: Launched) -> None:
    folders = {ranks: launched("halves", ranks=ranks) for ranks in (1, 2)}
    one, found = (np.load(folder / "trained.npz") for folder in folders.values())
    np.testing.assert_allclose(found["losses"], one["losses"], rtol=0, atol=1e-4)
    assert len(one["losses"]) == 5 and one["losses"][-1] != one["losses"][0]
    for name in one.files:
        np.testing.assert_allclose(
            found[name], one[name], rtol=0, atol=1e-4 if name == "losses" else 1e-5
        )
    assert json.loads((folders[2] / "changed.json").read_text()) == []


# On 2 ranks ResNet is in parts in tests/experiments/proofs/test_execution.py.
@pytest.mark.smoke
@pytest.mark.parametrize(("model", "ranks"), [("resnet50", 4), ("bert", 4), ("vit", 2)])
def test_what_is_in_parts_trains_as_on_one_device(
    launched: Launched, model: str, ranks: int
) -> None:
    folders = {count: launched("in_parts", model, ranks=count) for count in (1, ranks)}
    one, found = (dict(np.load(folder / "trained.npz")) for folder in folders.values())
    assert abs(one["losses"][-1] - one["losses"][0]) > 0.01
    for name in one:
        np.testing.assert_allclose(found[name], one[name], rtol=0, atol=1e-5, err_msg=name)
    told = json.loads((folders[ranks] / "told.json").read_text())
    assert told["changed"] == [] and told["cut"] > 1


@pytest.mark.smoke
def test_layers_that_are_computed_again_change_no_loss(launched: Launched) -> None:
    one, told = (
        json.loads((launched("recomputed_layers", ranks=n) / "losses.json").read_text())
        for n in (1, 2)
    )
    assert {model: [*losses] for model, losses in told.items()} == {
        "bert": ["again", "half again"], "resnet50": ["again"]
    }  # fmt: skip
    for model, losses in told.items():
        alone = one[model]["alone"]
        assert abs(alone[0] - alone[-1]) > 0.01
        for found in losses.values():
            assert found == pytest.approx(alone, abs=1e-5)


# Plans under which a model is trained that was built without memory.
ABSTRACT = {
    "2": {"mesh": "2", "search": "Megatron"},
    "two stages": {"mesh": "1", "pipeline": 2, "micro_batches": 2},
}


@pytest.fixture(scope="module")
def abstract(launched: Launched) -> Path:
    """Return what two ranks have written of a model that was built without memory."""
    return launched("abstract_models", json.dumps(ABSTRACT), ranks=2)


@pytest.fixture(scope="module")
def drawn(abstract: Path) -> dict[str, Any]:
    """Return the first values and losses of that model, by plan."""
    return {name: dict(np.load(abstract / f"{name}.npz")) for name in ABSTRACT}


@pytest.mark.smoke
def test_models_without_memory_begin_alike_on_all_meshes(drawn: dict[str, Any]) -> None:
    one, *others = drawn.values()
    for other in others:
        for name, value in one.items():
            if name not in ("losses", "both"):
                np.testing.assert_array_equal(other[name], value, err_msg=name)
    limit = 1 / np.sqrt(16)  # of nn.Linear(16, …): Kaiming's, uniform
    assert 0.97 * limit < np.abs(one["first.weight"]).max() < limit
    assert one["first.weight"].std() == pytest.approx(limit / np.sqrt(3), rel=0.1)
    assert one["last.weight"].std() == pytest.approx(0.02, rel=0.15)
    assert one["table"].std() == pytest.approx(0.5, rel=0.15)
    assert 0.5 < one["gate"].min() < 0.7 and 1.3 < one["gate"].max() < 1.5
    assert not one["last.bias"].any() and (one["norm.weight"] == 1).all()
    np.testing.assert_array_equal(one["mask"], np.tril(np.ones((4, 4))))


@pytest.mark.smoke
def test_models_without_memory_train_as_with_these_values(drawn: dict[str, Any]) -> None:
    """Hold the losses against the gradients of the formula in NumPy, with momentum."""
    expected = momentum_losses(next(iter(drawn.values())))  # all begin alike
    for values in drawn.values():
        np.testing.assert_allclose(values["losses"], expected, rtol=0, atol=1e-5)
        assert values["both"][0] == values["both"][1] != values["losses"][-1]  # after a resume, too


@pytest.mark.smoke
def test_what_was_computed_without_values_is_refused(abstract: Path) -> None:
    for rank in range(2):
        text = (abstract / f"refused{rank}.txt").read_text()
        assert "model.sum was computed inside abstract_parameters()" in text and "\n" not in text


def momentum_losses(values: dict[str, Any]) -> list[float]:
    """Return the losses of rank_scripts/abstract_models.py, by differences instead of derivatives."""
    names = [name for name in values if name not in ("losses", "both", "mask")]
    at = np.concatenate([values[name].ravel().astype(np.float64) for name in names])
    bounds = np.cumsum([values[name].size for name in names])[:-1]

    def loss(point: Any, x: Any, y: Any) -> float:
        parts = np.split(point, bounds)
        p = {n: part.reshape(values[n].shape) for n, part in zip(names, parts, strict=True)}
        hidden = x @ p["first.weight"].T + p["first.bias"]
        centred = hidden - hidden.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        normed = normed * p["norm.weight"] + p["norm.bias"] + p["table"]
        out = np.tanh(values["mask"] @ normed) * p["scale"] * p["gate"] @ p["last.weight"].T
        out = out + p["last.bias"]
        return float(((out - y) ** 2).mean())

    found, velocity = [], np.zeros_like(at)
    for number in range(len(values["losses"])):
        rng = np.random.default_rng(number)
        x, y = (rng.normal(size=(16, 4, n)).astype(np.float32).astype(float) for n in (16, 8))
        found.append(loss(at, x, y))
        steps = np.eye(len(at)) * 1e-5
        gradient = np.array([(loss(at + d, x, y) - loss(at - d, x, y)) / 2e-5 for d in steps])
        velocity = 0.9 * velocity + gradient
        at = at - 0.1 * velocity
    return found


@pytest.mark.parametrize(("plan", "ranks"), [("ZeRO", 2), ("five on 2", 2), ("2x2", 4)])
def test_batches_of_other_sizes_train_as_on_one_device(
    plan: str, ranks: int, launched: Launched
) -> None:
    seen, one = (_seen(launched("other_shapes", ranks=n)) for n in (ranks, 1))
    losses, weights = one[plan]
    assert seen[plan][0] == pytest.approx(losses, abs=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(seen[plan][1][name], value, rtol=0, atol=1e-5)


def test_other_sizes_are_refused_in_stages_and_at_first(launched: Launched) -> None:
    seen = _seen(launched("other_shapes", ranks=2))
    assert "plan with pipeline=1" in seen["stages"]
    assert "begin with those that it was planned for" in seen["first"]


@pytest.mark.smoke
def test_ops_without_a_rule_are_split_as_the_engine_says(launched: Launched) -> None:
    seen = _seen(launched("unknown_op", ranks=2))
    assert seen["losses"] == pytest.approx(seen["reference"], abs=1e-6)
    assert seen["states"] == {name: ["(S0)"] for name in ("mish", "mish_grad", "celu", "celu_grad")}
    assert seen["changed"] == []
    assert len(seen["warnings"]) == 1
    assert "OneFlow's own cuts" in seen["warnings"][0]
    for name in ("mish (1)", "mish_grad (1)", "celu (1)", "celu_grad (1)"):
        assert name in seen["warnings"][0]
        assert name in seen["strict"]
    assert "register_rule" in seen["strict"]


def test_a_rank_that_catches_its_error_and_leaves_ends_the_job() -> None:
    """The engine would wait for the other ranks where one lets go of its graph."""
    result = launch(
        [str(SCRIPTS / "caught.py")], nproc_per_node=2, timeout_s=LIMIT_S, env=environment()
    )
    assert (result.failed_rank, result.exit_code, result.timed_out) == (1, 3, False), result.message


@pytest.mark.smoke
def test_a_users_script_runs_under_both_launchers(launched: Launched, tmp_path: Path) -> None:
    """Ranks of the tests are started by `autoddl run`."""
    option = ["--nproc_per_node", "2", "--master_port", str(_free_port())]
    script = [str(SCRIPTS / "train_once.py"), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *option, *script],
        env=environment(), timeout=LIMIT_S, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, other = (_seen(folder) for folder in (launched("train_once", ranks=2), tmp_path))
    assert one["mesh"] == other["mesh"] == "2"
    assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)


@pytest.fixture
def exact(launched: Launched) -> Any:
    """Return what one process and two ranks saw of dropout and of a local BatchNorm."""
    return {count: seen_by(count, launched("exactness", ranks=count)) for count in (1, 2)}


@pytest.mark.smoke
def test_dropout_draws_the_mask_of_one_device(exact: Any) -> None:
    expected = exact[1][0]["dropout"]["losses"]
    assert len(set(expected)) == 4  # another mask in every step
    for rank in exact[2]:
        assert rank["dropout"]["losses"] == pytest.approx(expected, abs=1e-6)
        (drawing,) = (
            s for s in rank["dropout"]["states"].values() if {"in_0", "mask_0"} <= s.keys()
        )
        assert set(drawing.values()) == {"(B)"}


@pytest.mark.smoke
def test_a_local_batchnorm_is_cut_and_right_where_its_statistics_are(exact: Any) -> None:
    expected = exact[1][0]["norm"]["losses"]
    for rank in exact[2]:
        assert rank["norm"]["losses"] == pytest.approx(expected, abs=1e-5)
        states = [s for s in rank["norm"]["states"].values() if "inv_variance_0" in s]
        assert [s["x_0"] for s in states] == ["(S0)"] * 2
        assert [s["mean_0"] for s in states] == ["(B*)"] * 2


def _seen(folder: Path) -> Any:
    return json.loads((folder / "seen.json").read_text())


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
