"""Whatever a saved plan says, no text of it becomes code of the script that is generated from it.

Payloads go into every text, key and number of saved plans, alone and into a word wherever it stands.
What can be read then is generated, parsed, and run with an engine that does nothing.
"""

from __future__ import annotations

import ast
import builtins
import copy
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

import autoddl
from autoddl import json_files
from autoddl.api import Plan
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from tests.autoddl.codegen.plans import generate, planned
from tests.support.pipelines import in_stages, recomputing
from tests.support.programs import mlp, transformer

PAYLOADS = (
    '"""\npwned()\n"""', '"+pwned()+"', "'+pwned()+'", "\npwned()\n#", "\rpwned()\r", "\\", "\\N",
    "#", "\u2028pwned()\u2028", "\x85pwned()", "\x0cpwned()\x0c", "\x00", "{pwned()}", "{", ", pwned(), ",
    "(", "])", " pwned() ", ";pwned();", "\u202epwned()", "\ud800",
)  # fmt: skip
PARTS = 4  # of the places that payloads go into
Json = Any
Place = tuple[Any, ...]


class _Engine(ModuleType):
    """A module in the place of OneFlow, whose functions do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(**{"get_rank.return_value": 0})


def _import(name: str, *args: Any) -> Any:
    return _Engine(name) if name.startswith("oneflow") else builtins.__import__(name, *args)


def pwned() -> None:
    raise AssertionError("text of the file has run")


def nodes(text: str) -> list[str]:
    """Return the kinds of all nodes of a script, after looking that none of them calls the payload."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.Name) and node.id == "pwned"), "a payload became code"
        if isinstance(node, ast.FunctionDef | ast.Module) and ast.get_docstring(node):
            assert "pwned()\n" not in str(ast.get_docstring(node))
    assert not [line for line in text.splitlines() if re.match(r"\s*pwned", line)]
    assert text.replace("\n", "").isprintable(), "the script shows a control character"
    return [type(node).__name__ for node in ast.walk(tree)]


def run(text: str) -> None:
    """Run the module's level of a script."""
    known = {**vars(builtins), "__import__": _import, "pwned": pwned}
    code = compile(text, "script.py", "exec")
    exec(code, {"__name__": "script", "__builtins__": known, "pwned": pwned})


def as_read(saved: Plan | Program) -> Json:
    """Return the JSON of a file."""
    return json.loads(json.dumps(saved.to_json()))


def crafted(data: Json, folder: Path) -> str | None:
    """Return the script of a plan's JSON, None where reading or generating refuses it in one line."""
    path = folder / "plan.json"
    text = json.dumps(data).encode()
    with suppress(ValueError):  # half of a surrogate pair, which no JSON has
        text = json_files.signed(text)
    path.write_bytes(text)
    try:
        return generate(autoddl.load(path))
    except AutoDDLError as error:
        assert len(str(error).splitlines()) == 1, error
        return None


def places(data: Json, at: Place = ()) -> Iterator[Place]:
    """Yield the places of all texts, numbers and keys."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*at, key, "key")
            yield from places(value, (*at, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from places(value, (*at, index))
    else:
        yield at


def with_payload(data: Json, place: Place, payload: str) -> Json:
    """Return the JSON with a payload behind the text or key, or in the place of the number there."""
    found = copy.copy(data)
    first, *rest = place
    if rest == ["key"]:
        return {f"{k}{payload}" if k == first else k: v for k, v in data.items()}
    if not rest:
        old = data[first]
        found[first] = f"{old}{payload}" if isinstance(old, str) else payload
    else:
        found[first] = with_payload(data[first], tuple(rest), payload)
    return found


def renamed(data: Json, change: Callable[[str], str]) -> Json:
    """Return the JSON with all its texts and keys changed."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {change(key): renamed(value, change) for key, value in data.items()}
    return [renamed(v, change) for v in data] if isinstance(data, list) else data


def words(data: Json) -> list[str]:
    """Return all words that stand in texts and keys, but for the fields of a plan: some may be absent."""
    found = set(re.findall(r"[A-Za-z_]\w*", json.dumps(data)))
    return sorted(found - {field.name for field in fields(Plan)})


def payloads(part: int) -> Iterator[str]:
    """Yield all payloads again and again, those of each part from another one on."""
    return islice(cycle(PAYLOADS), part, None)


def written_out(plan: Plan) -> set[str]:
    """Return the words that are seen in scripts: of modules, variables and the profile."""
    texts = [*plan.variables, *(op.module for op in plan.program.ops), plan.profile, plan.device]
    return {
        plan.fingerprint,
        *(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text)),
    }


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    small = planned(mlp(optimizer="momentum"), "2x2")
    halves = in_stages(small, 2, 2, lambda module: int(module.endswith("2")))
    blocks = planned(transformer(layers=2), "2", "Megatron")
    return {
        "one stage": small,
        "stages": recomputing(halves, (0,)),
        "loops": in_stages(blocks, 1, 2, lambda _: 0),
    }


@pytest.mark.parametrize("name", ["one stage", "stages", "loops"])
def test_words_with_payloads_are_data(name: str, plans: dict[str, Plan], tmp_path: Path) -> None:
    data = as_read(plans[name])
    clean = generate(plans[name])
    run(clean)
    kinds, written, seen = nodes(clean), set(), written_out(plans[name])
    waiting = payloads(0)
    tried = {"one stage": words(data), "stages": words(data)[1::2], "loops": sorted(seen)}[name]
    for word in tried:
        own = re.compile(rf"(?<!\w){word}(?!\w)")
        many = word in seen and name != "loops"
        for payload in islice(waiting, 2 if many else 1):
            text = crafted(renamed(data, lambda t: own.sub(lambda m: m[0] + payload, t)), tmp_path)  # noqa: B023
            if text is not None:
                assert nodes(text) == kinds, (word, payload)
                run(text)
                written.add(payload)
    some = {'"+pwned()+"', "'+pwned()+'", "\\", "{pwned()}", "(", ", pwned(), "}
    assert written >= (some if name == "one stage" else {"{pwned()}"})


@pytest.mark.parametrize("part", range(PARTS))
def test_single_values_with_payloads_are_data(
    part: int, plans: dict[str, Plan], tmp_path: Path
) -> None:
    data = as_read(plans["stages"])
    waiting = payloads(part)
    unlike = {tuple(key for key in p if isinstance(key, str)): p for p in places(data)}
    for place in list(unlike.values())[part::PARTS]:  # one element of each list
        text = crafted(with_payload(data, place, next(waiting)), tmp_path)
        if text is not None:
            nodes(text)
            run(text)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_program_file_is_read_likewise(part: int, tmp_path: Path) -> None:
    data = as_read(mlp())
    waiting = payloads(part)
    for place in list(places(data))[part::PARTS]:
        text = json.dumps(with_payload(data, place, next(waiting)))
        (tmp_path / "program.json").write_text(text)
        try:
            found = Program.load(tmp_path / "program.json")
        except AutoDDLError as error:
            assert len(str(error).splitlines()) == 1
            continue
        assert found.device in ("cpu", "cuda")
        names = [x.name for x in (*found.ops, *found.tensors)]
        assert all(n.isprintable() for n in (*names, *(op.module for op in found.ops)))
