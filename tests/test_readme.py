"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from autoddl.sbp.rules import registry

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_rule_example_registers_a_right_rule(registry: None) -> None:
    from autoddl.sbp.oracle import check_signature
    from autoddl.sbp.rules.registry import OpView, find, signatures
    from autoddl.sbp.state import NdSbp

    example = next(block for block in blocks() if "register_rule" in block)
    assert find("mish") is None
    exec(example, {})
    view = OpView("mish", ("in_0",), ("out_0",), {"in_0": (4, 6), "out_0": (4, 6)}, {})
    found = signatures(view)
    assert {str(s["in_0"]) for s in found} == {"B", "S0", "S1"}
    for signature in found:
        states = {name: NdSbp((state,)) for name, state in signature.items()}
        assert check_signature(view, states, (2,), np.random.default_rng(0)) is None


def test_commands_of_the_readme_exist() -> None:
    text = README.read_text()
    makefile = (README.parent / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", text)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
