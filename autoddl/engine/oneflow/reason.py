r"""Why OneFlow failed, in one line.

What the engine raises has many lines: a message, in which whole tensors may be printed, and a call
stack.

    no labels for tensor([[1., 2.],                 →  give a label for each row
            [3., 4.]], dtype=oneflow.float32)
    give a label for each row

    (4 vs 5)                                        →  (4 vs 5), in InferTensorDesc4Matmul
      File "oneflow/user/ops/matmul_op.cpp", line 51, in InferTensorDesc4Matmul
        …
    Error Type: oneflow.ErrorProto.check_failed_error
"""

from __future__ import annotations

import re

from autoddl.calls import kept
from autoddl.errors import shortened

_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_FRAME = re.compile(r'^ +File "[^"\n]*", line \d+, in (.*)(?:\n {4}.*)*$', re.MULTILINE)
_KIND = re.compile(r"^Error Type: .*$", re.MULTILINE)
_OWN = "Error: "  # how the engine begins its messages
_WORD = re.compile(r"(?<![\w=.])(?!(?:tensor|nan|inf|True|False|dtype|size)\b)[^\W\d_]{2,}")
_MOST = 300  # characters


def reason(error: Exception) -> str:
    """Return the last line of an error of the engine that is a message, and in which file all are."""
    file = kept(error)
    return f"{message(str(error)) or repr(error)}{f' (more in {file})' if file else ''}"


def message(text: str) -> str:
    """Return the last line of a text that is a message, and which function of a call stack has it."""
    text = _COLOURS.sub("", text)
    functions = _FRAME.findall(text)
    lines = _folded(_KIND.sub("", _FRAME.sub("", text))).splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    found = (
        [line for line in lines if line.startswith(_OWN)]
        or [line for line in lines if _WORD.search(line)]
        or lines
        or [""]
    )[-1]
    return shortened(f"{found}, in {functions[-1]}" if functions else found, _MOST)


def _folded(text: str) -> str:
    """Return a text without what is between brackets on several lines: tensors, protos."""
    found: list[str] = []
    opened: list[int] = []
    for character in text:
        if character in "([{":
            opened.append(len(found))
        elif character in ")]}" and opened:
            begin = opened.pop() + 1
            if "\n" in found[begin:]:
                found[begin:] = "…"
        found.append(character)
    return "".join(found)
