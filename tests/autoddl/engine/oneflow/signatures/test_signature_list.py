"""The engine's own lists: right ones, at any attribute type, whatever happens to the child or cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.engine.oneflow.signatures import signature_list as module
from autoddl.engine.oneflow.signatures.signature_cache import SignatureCache, default_folder
from autoddl.engine.oneflow.signatures.signature_list import Query, SignatureList, signature_lists
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.state import B, S
from experiments.rule_cases import case
from tests.sbp.rules.test_rules import BY_ID, ENGINE_LISTS, text

MISH = case("mish", "in_0: 8 4 -> out_0: 8 4")
WRONG_NAME = case("mish", "x_0: 8 4 -> y_0: 8 4")  # the engine aborts


def query(view: OpView, ranks: int = 4) -> Query:
    return Query.of(view, dict.fromkeys(view.inputs, "float32"), ranks)


def texts(view: OpView, answer: SignatureList) -> set[str]:
    assert answer.signatures is not None, answer.reason
    return {text(view, signature) for signature in answer.signatures}


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHILD", ("-c", "raise SystemExit('asked')"))


@pytest.mark.oneflow
def test_lists_equal_those_noted_by_hand() -> None:
    views = [BY_ID[name] for name in ENGINE_LISTS]
    answers = signature_lists([query(view) for view in views])
    for view, answer, noted in zip(views, answers, ENGINE_LISTS.values(), strict=True):
        found = texts(view, answer)
        broadcast = " ".join("B" * len(view.inputs + view.outputs))
        assert broadcast in found
        assert set(noted.split("; ")) <= found - {broadcast}


@pytest.mark.oneflow
def test_lists_depend_on_attributes_ranks_and_small_dims() -> None:
    views = [
        case("transpose", "input_0: 8 4 -> output_0: 4 8", perm=(1, 0)),
        case("softmax", "in_0: 4 2 8 -> out_0: 4 2 8"),
        case("reshape", "in_0: 6 4 -> out_0: 2 3 4", shape=(2, 3, 4)),
        case("reshape", "in_0: 6 4 -> out_0: 2 3 4", shape=(2, 3, 4)),
        case("pad", "x_0: 4 8 -> y_0: 4 10", padding_before=(0, 1), padding_after=(0, 1)),
        case("concat", "in_0: 4 8, in_1: 4 4 -> out_0: 4 12", axis=1, max_dim_size=12),
        case("squeeze", "in_0: 4 1 8 -> out_0: 4 8", axes=(1,)),
    ]
    ranks = (4, 4, 2, 3, 4, 4, 4)
    answers = signature_lists([query(v, n) for v, n in zip(views, ranks, strict=True)])
    found = [texts(view, answer) for view, answer in zip(views, answers, strict=True)]
    assert found == [
        {"S0 S1", "S1 S0", "P P", "B B"},
        {"S0 S0", "B B"},  # the engine leaves out cuts of dims smaller than the ranks
        {"S0 S0", "S1 S2", "P P", "B B"},
        {"S1 S2", "P P", "B B"},  # 2 does not go into 3 parts
        {"S0 S0", "B B"},
        {"S0 S0 S0", "P P P", "B B B"},
        {"S0 S0", "S2 S1", "B B"},
    ]


@pytest.mark.oneflow
def test_a_child_that_dies_loses_only_its_op(tmp_path: Path) -> None:
    cache = SignatureCache(tmp_path)
    attribute = case("mish", "in_0: 8 4 -> out_0: 8 4", alpha=1.0)
    ignoring = case("ones_like", "like_0: 4 8 -> out_0: 4 8")
    views = [MISH, WRONG_NAME, replace(MISH, type="silu"), attribute, ignoring]
    seen: list[tuple[int, int]] = []
    answers = signature_lists(
        [query(v) for v in views], cache=cache, progress=lambda *p: seen.append(p)
    )
    assert texts(MISH, answers[0]) == texts(MISH, answers[2]) == {"S0 S0", "S1 S1", "B B"}
    assert [a.signatures for a in answers[1::2]] == [None, None]
    assert "the engine stopped" in answers[1].reason
    assert "Cannot find input_arg_name : in" in answers[1].reason
    assert "mish has not attr_name: alpha" in answers[3].reason
    assert "no list" in answers[4].reason
    assert not any("\n" in answer.reason for answer in answers)
    assert seen == [(i, 5) for i in range(1, 6)]
    assert len(list((tmp_path / "signatures").iterdir())) == 4  # an abort may not come again


@pytest.mark.oneflow
def test_attributes_are_written_as_they_were_read() -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.reader import _attribute, capture
    from autoddl.engine.oneflow.job.attributes import attribute_type, attribute_value

    class Graph(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            y = flow.nn.functional.pad(x.permute(1, 0, 2), (1, 1), value=0.5).cumsum(1)
            return y.sum(2).to(flow.float64).clamp(-1.5, 2.5)

    program = capture(Graph(), flow.zeros(4, 8, 4))
    fields = set()
    for op in program.ops:
        for name, value in op.attrs:
            field = attribute_type(op.type, name)
            assert _attribute(attribute_value(value, field)) == value
            fields.add(field)
    assert {"at_list_int32", "at_list_int64", "at_bool", "at_double", "at_data_type"} <= fields


def test_without_a_child(never: None, tmp_path: Path) -> None:
    assert signature_lists([]) == ()
    alone, source = signature_lists(
        [query(MISH, 1), query(case("constant", "-> out_0: 4 8"))], cache=SignatureCache(tmp_path)
    )
    assert alone.signatures == ({"in_0": B, "out_0": B},)
    assert source == SignatureList(None, module.NO_INPUTS)


def test_an_engine_that_does_not_start(never: None) -> None:
    answers = signature_lists([query(MISH, 2), query(MISH, 4)])
    assert [a.signatures for a in answers] == [None, None]
    assert all("does not start" in a.reason and "asked" in a.reason for a in answers)


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time; print('true', flush=True); time.sleep(60)"
    monkeypatch.setattr(module, "_CHILD", ("-c", code))
    answers = signature_lists([query(MISH, 2), query(MISH, 4)], answer_limit_s=0.2)
    assert all(a.reason == "no answer within 0.2 s" for a in answers)


# --- the cache -------------------------------------------------------------------------------


def kept(folder: Path, answer: dict[str, Any]) -> Path:
    """Keep an answer for mish on 4 devices and return its file."""
    from dataclasses import asdict

    SignatureCache(folder).put(asdict(query(MISH)), answer)
    (file,) = (folder / "signatures").iterdir()
    return file


def test_what_is_kept_is_not_asked_again(never: None, tmp_path: Path) -> None:
    kept(tmp_path, {"signatures": [{"in_0": "S1", "out_0": "S1"}]})
    cache = SignatureCache(tmp_path)
    (answer,) = signature_lists([query(MISH)], cache=cache)
    assert answer.signatures == ({"in_0": S(1), "out_0": S(1)},)
    wider = replace(MISH, shape={"in_0": (16, 4), "out_0": (16, 4)})
    others = [query(MISH, 2), query(wider), query(replace(MISH, attr={"a": 1}))]
    assert all("asked" in a.reason for a in signature_lists(others, cache=cache))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: text.replace("S1", "S?"),
        lambda text: text.replace('"mish"', '"silu"'),  # another question in this file
    ],
)
def test_a_damaged_file_is_asked_again(never: None, tmp_path: Path, damage: Any) -> None:
    file = kept(tmp_path, {"signatures": [{"in_0": "S1", "out_0": "S1"}]})
    file.write_text(damage(file.read_text()))
    (answer,) = signature_lists([query(MISH)], cache=SignatureCache(tmp_path))
    assert "asked" in answer.reason


def test_a_folder_that_can_not_be_used_costs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "signatures").write_text("a file, not a folder")
    cache = SignatureCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            cache.put({"n": number}, {})
            assert cache.get({"n": number}) is None
    assert len(caplog.records) == 1
    assert "not kept" in caplog.text


def test_another_engine_version_is_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path, {"reason": "x"})
    monkeypatch.setattr(
        "autoddl.engine.oneflow.signatures.signature_cache._engine_version", lambda: "0.10"
    )
    assert SignatureCache(tmp_path).get(json.loads(json.dumps({"type": "mish"}))) is None


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "autoddl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says: ignore it
    assert default_folder() == Path.home() / ".cache" / "autoddl"


# --- ops without a rule ----------------------------------------------------------------------


def program(types: Sequence[str], dtype: str = "float32") -> Program:
    """Return a chain of ops that keep shape and dtype."""
    names = ["input", *(f"t{i}" for i in range(len(types)))]
    ops = tuple(
        Op(f"op{i}", name, (("in_0", names[i]),), (("out_0", names[i + 1]),))
        for i, name in enumerate(types)
    )
    tensors = tuple(Tensor(n, (8, 4), dtype, "activation") for n in names)
    return Program(ops, tensors, ("input",), (names[-1],), (), None)


@pytest.fixture
def fewer_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    from autoddl.sbp.rules import registry

    lost = {"dropout", "amp_white_identity", "sqrt_square_sum"}
    rules = {name: rule for name, rule in registry._REGISTRY.items() if name not in lost}
    monkeypatch.setattr(registry, "_REGISTRY", rules)


@pytest.mark.oneflow
@pytest.mark.usefixtures("fewer_rules")
def test_unknown_ops_choose_among_the_engines_signatures(tmp_path: Path) -> None:
    from autoddl.engine.oneflow.signatures.unknown_ops import NEVER_ASKED, ask
    from autoddl.sbp.mesh import Mesh
    from autoddl.search.network.choices import choices

    chain = program(["mish", "dropout", "nosuch", "amp_white_identity"])
    found = ask(chain, [2, 1, 4], SignatureCache(tmp_path))
    assert set(found.whole) == {"dropout", "nosuch"}
    assert found.whole["dropout"] == NEVER_ASKED["dropout"]
    assert "nosuch" in found.whole["nosuch"]
    mesh = Mesh.parse((2, 4), ("node", "device"))

    def states(index: int) -> list[str]:
        signatures = choices(chain, chain.ops[index], mesh, found.signatures, limits=ONEFLOW.limits)
        assert all(s["in_0"] == s["out_0"] for s in signatures)
        return [str(s["in_0"]) for s in signatures]

    mish = [
        "(B, B)",
        "(B, S0)",
        "(S0, B)",
        "(S0, S0)",
        "(S0, S1)",
        "(B, S1)",
        "(S1, B)",
        "(S1, S0)",
    ]
    assert states(0)[0] == "(B, B)"
    assert sorted(states(0)) == sorted(mish)  # (S1, S1) would cut 4 columns into 8
    assert states(1) == states(2) == ["(B, B)"]
    assert sorted(states(3)) == sorted(mish)  # the engine lists P, too


# Ops for which OneFlow lists a signature that gives other numbers, and what is taken of the others.
WRONG = (
    (case("sqrt_square_sum", "x: 4 8 -> y:"), "S0 P"),
    (
        case(
            "roi_align_grad", "dy: 4 8 2 2, x_like: 4 8 8 8, rois: 4 5 -> dx: 4 8 8 8",
            spatial_scale=1.0, sampling_ratio=2, pooled_h=2, pooled_w=2, aligned=False,
        ),
        "S0 B S0 B",
    ),
    (
        case("tensor_scatter_nd_update", "params: 8 4, updates: 4 4, indices: 4 1 -> out: 8 4"),
        "B S0 S0 B",
    ),
    (
        case(  # the targets of all samples one after the other
            "ctc_loss", "log_probs: 6 4 5, targets: 12, input_lengths: 4, target_lengths: 4"
            " -> loss: 4, alpha: 4 6 7", max_target_length=3, blank=0, zero_infinity=False,
        ),
        "S1 S0 S0 S0 S0 S0",
    ),
    (case("isnan", "in: 8 4 -> out: 8 4"), "P P"),
)  # fmt: skip
TAKEN = {"tensor_scatter_nd_update": {"S1 S1 B S1"}, "isnan": {"S0 S0", "S1 S1"}}


@pytest.mark.oneflow
@pytest.mark.usefixtures("fewer_rules")
def test_wrong_signatures_of_the_engine_are_not_taken(tmp_path: Path) -> None:
    from autoddl.engine.oneflow.signatures.unknown_ops import ask

    cache, dtypes = SignatureCache(tmp_path), {"indices_0": "int64", "targets_0": "int32"}
    listed = signature_lists(
        [Query.of(v, dict.fromkeys(v.inputs, "float32") | dtypes, 2) for v, _ in WRONG], cache=cache
    )
    found = ask(apart([view for view, _ in WRONG], dtypes), [2], cache)
    for (view, wrong), answer in zip(WRONG, listed, strict=True):
        assert wrong in texts(view, answer)  # else OneFlow has mended it
        op = Op(view.type, view.type, (), ())
        taken = {text(view, signature) for signature in found.signatures(op, 2)}
        assert wrong not in taken
        assert taken == TAKEN.get(view.type, set())
    assert found.whole.keys() == {view.type for view, _ in WRONG} - TAKEN.keys()
    assert "not proven" in found.whole["sqrt_square_sum"]


def apart(views: Iterable[OpView], dtypes: Mapping[str, str]) -> Program:
    """Return the program of ops that have nothing to do with each other."""
    ops, tensors = [], []
    for view in views:
        sides = [
            tuple((operand, f"{view.type}/{operand}") for operand in side)
            for side in (view.inputs, view.outputs)
        ]
        ops.append(Op(view.type, view.type, *sides, tuple(view.attr.items())))
        tensors += [
            Tensor(name, view.shape[o], dtypes.get(o, "float32"), "activation")
            for side in sides
            for o, name in side
        ]
    made = tuple(name for op in ops for _, name in op.outputs)
    return Program(tuple(ops), tuple(tensors), (), made, (), None)


@pytest.mark.oneflow
@pytest.mark.usefixtures("fewer_rules")
def test_one_warning_tells_whose_word_was_taken() -> None:
    import autoddl

    chain = program(["mish", "mish", "dropout"])
    with pytest.warns(UserWarning, match="without a rule") as caught:
        plan = autoddl.optimize(chain, mesh="2", search="data parallel")
    assert len(caught) == 1
    message = str(caught[0].message)
    for words in ("OneFlow's own", "not proven", "mish (2)", "dropout (1)", "register_rule"):
        assert words in message
    assert str(plan.signatures["op1"]["out_0"]) == "(S0)"
    assert str(plan.signatures["op2"]["out_0"]) == "(B)"
