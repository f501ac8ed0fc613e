"""One line of what the engine says, and a file with all of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from autoddl.engine.oneflow.reason import message, reason

PRINTED = """no labels for tensor([[1., 2.],
        [3., 4.]], dtype=oneflow.float32)"""
STACK = """(4 vs 5)\x20
  File "/oneflow/core/functional/impl/nn_functor.cpp", line 321, in operator()
    OpInterpUtil::Dispatch<Tensor>(*matmul_op_, {cast_a, cast_b}, attrs)
  File "/oneflow/user/ops/matmul_op.cpp", line 51, in InferTensorDesc4Matmul
    \x20
Error Type: oneflow.ErrorProto.check_failed_error"""
LISTED = """\x1b[1m\x1b[38;2;255;000;000mError\x1b[0m: op has no maching sbp in sbp list sbp_signature {
  bn_in_op2sbp_parallel {
    key: "x_0"
  }
}
sbp_signature {
  bn_in_op2sbp_parallel {
    key: "y_0"
  }
}
 with sbp hint bn_in_op2sbp_parallel {
  key: "x_0"
}

"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\x1b[1m\x1b[38;2;255;000;000mError\x1b[0m: shapes differ\n", "Error: shapes differ"),
        (PRINTED, "no labels for tensor([…], dtype=oneflow.float32)"),
        (f"{PRINTED}\ngive one for each row", "give one for each row"),
        (f"give one for each row\n{PRINTED[14:]}", "give one for each row"),
        ("[3., nan]], dtype=oneflow.float32)\nno labels", "no labels"),
        ("no labels\n        [3., 4.]], dtype=oneflow.float32)", "no labels"),
        (STACK, "(4 vs 5), in InferTensorDesc4Matmul"),
        (LISTED, "Error: op has no maching sbp in sbp list sbp_signature {…}"),
        ("'k'", "'k'"),
        ("bell\x07 rings", "bell\\x07 rings"),
        ("17", "17"),
        ("", ""),
    ],
)
def test_it_is_the_last_line_that_is_a_message(text: str, line: str) -> None:
    assert message(text) == line


def test_it_is_not_longer_than_a_line() -> None:
    assert len(message("xy" * 5000)) <= 300


def test_the_whole_stands_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = reason(ValueError(f"{PRINTED}\nbad"))
    (file,) = tmp_path.iterdir()
    assert told == f"bad (more in {file})"
    assert PRINTED in file.read_text()


def test_an_error_that_says_nothing_has_a_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # no room for a file
    assert reason(ValueError("")) == "ValueError('')"
