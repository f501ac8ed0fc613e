"""Files of plans: what they hold, how damaged ones are refused, and that old ones can't be read."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import autoddl
from autoddl import json_files
from autoddl.api import Plan
from autoddl.cli import app
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.plan import codec
from tests.support.clusters import cluster
from tests.support.programs import mlp

GOLDEN = Path(__file__).parent / "golden_plan.json"
REMEDY = "plan again with autoddl.optimize"


@cache
def plan() -> Plan:
    """Return a small plan with stages, the one of the golden file."""
    program = mlp(8, (16, 32, 8), optimizer="sgd", act="relu")
    return autoddl.optimize(
        program, mesh="2", pipeline=2, micro_batches=2, profile=cluster(), budget=60.0
    )


def refusal(text: str | bytes) -> str:
    with pytest.raises(AutoDDLError) as caught:
        codec.decode(text, "a.json", engines.model)
    said = str(caught.value)
    assert said.startswith("a.json: ") and said.endswith(f"; {REMEDY}") and "\n" not in said
    return said


def changed(*path: str | int, to: Any) -> str:
    """Return the golden file's text with another value at a path."""
    data = json.loads(GOLDEN.read_text())
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(data)


def test_the_golden_file_is_read_and_written_as_it_is() -> None:
    """Of this version: who changes what is written raises FORMAT_VERSION, and makes the file again."""
    read = codec.load(GOLDEN, engines.model)
    assert read == codec.load(GOLDEN.with_name("golden_plan_3.json"), engines.model)
    assert json.loads(json_files.signed(codec.encode(read))) == json.loads(GOLDEN.read_text())
    assert codec.decode(codec.encode(read), "again", engines.model) == read


def test_plans_are_written_so_today() -> None:
    written, golden = plan().to_json(), json.loads(GOLDEN.read_text())
    golden.pop("digest")
    for data in (written, golden):
        data["search"] |= {"seconds": 0.0}
        for part in data["parts"]:  # numbers of the model, which are no matter of the format
            assert part.pop("memory_bytes") > 0
    assert written["parts"] == golden["parts"]
    assert written.keys() == golden.keys() and written["search"].keys() == golden["search"].keys()


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("version",), 1, "version 1, this autoddl reads 4"),
        (("version",), "3", "version '3'"),
        (("format",), "other", "not a plan"),
        (("parts", 0, "mesh"), "[gpu x]", "$.parts[0].mesh: '[gpu x]'"),
        (("parts", 0, "mesh"), 7, "$.parts[0].mesh: expected `str`, got `int`: 7"),
        (("parts", 1, "ranks"), "2", "$.parts[1].ranks: expected `array`"),
        (("parts", 1, "ranks"), [2], "$.parts[1]: ranks [2]; mesh 2 has 2, which ascend from 0 on"),
        (("parts", 1, "ranks"), [3, 2], "$.parts[1]: ranks [3, 2]; mesh 2 has 2, which ascend"),
        (("parts", 1, "ranks"), [-1, 2], "$.parts[1]: ranks [-1, 2]; mesh 2 has 2, which ascend"),
        (("parts", 1, "ranks"), [1, 2], "$.parts: rank 1 is in part 0 and in 1"),
        (("parts", 1, "arrivals", 0, "arrival"), "(S0, B)", "$.parts[1].layout: state (S0, B)"),
        (("parts", 1, "arrivals", 0, "path"), ["(S0, B)"], "$.parts[1].arrivals: path"),
        (("parts", 1, "in_flight"), 0, "$.parts[1]"),
        (("parts",), [], "0 parts"),
        (("micro_batches",), 0, "0 micro-batches"),
        (("parts", 0, "layout", "variables", "model.fc1.weight"), "(S0, B)", "$.parts[0].layout"),
        (
            ("parts", 0, "layout", "variables", "model.fc1.weight"),
            "what",
            "$.parts[0].layout.variables['model.fc1.weight']: 'what'",
        ),
        (("parts", 0, "layout", "variables", "none"), "(B)", "'none' is no tensor"),
        (("parts", 0, "layout", "signatures", "none"), {}, "'none' is no op"),
        (("parts", 0, "layout", "before"), {}, "$.parts[0].layout"),
        (("parts", 1, "arrivals", 0, "source"), 9, "$.parts[1].arrivals: from part 9 to 1"),
        (("estimate", "compute_s"), "fast", "$.estimate.compute_s: expected `float`"),
        (("search", "solver"), "a\nb", "allowed is text without line ends"),
        (("engine",), "jax", "$.engine: got 'jax'; allowed are oneflow, script or None"),
        (("search", "objective"), "cost", "$.search.objective: 'cost'; known are time, sum"),
        (("compute_stream",), None, "$.compute_stream"),
        (("program", "ops"), 3, "$.program"),
        (("profile",), ["x" * 5000], "$.profile"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(
    path: tuple[str | int, ...], value: Any, words: str
) -> None:
    said = refusal_of_any(changed(*path, to=value))
    assert words in said
    assert len(said) < 600  # of a value at most 200 characters


NONSENSE: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "negative compute": (("estimate", "compute_s"), -1.0, "$.estimate.compute_s: expected `float` >= "),
    "ages of communication": (("estimate", "communication_s"), 1e308, "$.estimate.communication_s: "),
    "memory below 0": (("estimate", "memory_bytes"), -1, "$.estimate.memory_bytes: expected `int` >= 0"),
    "an uncertain age": (("estimate", "uncertainty_s"), 1e308, "$.estimate.uncertainty_s: "),
    "a baseline below 0": (
        ("baselines",), [{"name": "a", "compute_s": -1, "communication_s": 0, "memory_bytes": 0}],
        "$.baselines[0].compute_s: ",
    ),
    "a limit that it exceeds": (
        ("memory_limit_bytes",), 1, "$.memory_limit_bytes: 1, but the plan needs 11264; a plan keeps to"
    ),
    "a limit below 0": (("memory_limit_bytes",), -1, "$.memory_limit_bytes: expected `int` >= 0"),
    "a gap of ages": (("search", "gap"), 1e19, "$.search.gap: expected `float` <= 1.0: 1e+19"),
    "a gap below 0": (("search", "gap"), -0.5, "$.search.gap: "),
    "a bound below 0": (("search", "lower_bound_s"), -1.0, "$.search.lower_bound_s: "),
    "a search of ages": (("search", "seconds"), 1e300, "$.search.seconds: "),
    "no searches": (("search", "searches"), -1, "$.search.searches: "),
    "an outcome below 0": (("search", "outcomes", 0, "step_s"), -1.0, "$.search.outcomes[0].step_s: "),
    "an outcome of escapes": (("search", "outcomes", 0, "mesh"), "\x1b[31m", r"name '\x1b[31m'; allowed"),
    "micro-batches that the batch has not": (
        ("micro_batches",), 1000, "$.micro_batches: 1000 through 2 stages, which no search has tried"
    ),
    "a stage below 0": (("parts", 0, "work", "forward", 0, 1), -1.0, "$.parts[0].work.forward[0][1]: "),
    "a strange stream": (("parts", 0, "work", "forward", 0, 0), "x", "stage 0 has"),
    "no forward pass": (("parts", 0, "work", "forward"), [], "stage 0 lacks a forward or backward pass"),
    "a module below 0": (("parts", 0, "rows", 0, "compute_s"), -1.0, "$.parts[0].rows[0].compute_s: "),
    "a transfer below 0": (
        ("parts", 1, "arrivals", 0, "seconds"), -1.0, "$.parts[1].arrivals[0].seconds: "
    ),
    "a name of a million": (("profile",), "x" * 10**6, "of 1000000 characters; allowed are 1000"),
}  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_neither_loaded_nor_signed(
    nonsense: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an edited file can hold and no search finds."""
    path, value, words = NONSENSE[nonsense]
    text = changed(*path, to=value)
    assert words in refusal_of_any(text)
    (tmp_path / "plan.json").write_text(text)
    assert app.main(["sign", str(tmp_path / "plan.json")]) == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "plan.json").read_text() == text


def refusal_of_any(text: str) -> str:
    with pytest.raises(AutoDDLError) as caught:
        codec.decode(text, "a.json", engines.model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plan_of_version_2_loads_and_says_that_its_gap_is_of_the_sum() -> None:
    old = json.loads(GOLDEN.with_name("golden_plan_3.json").read_text()) | {"version": 2}
    with pytest.warns(UserWarning, match="version 2: its gap is of the sum") as said:
        read = codec.decode(json.dumps(old), "a.json", engines.model)
    assert len(said) == 1
    golden = codec.load(GOLDEN, engines.model)
    assert read.search == replace(golden.search, objective="sum")
    assert replace(read, search=golden.search) == golden


def test_the_order_of_ops_is_kept() -> None:
    first, *_, last = (op.name for op in codec.load(GOLDEN, engines.model).program.ops)
    text = changed("parts", 0, "layout", "after", to={last: first})
    read = codec.decode(text, "a.json", engines.model)
    assert read.parts[0].layout.after == {last: first}
    assert codec.decode(codec.encode(read), "again", engines.model) == read
    for after, words in (
        ({last: "other"}, "'other' is no op of the program"),
        ({first: last, last: first}, "waits for itself"),
    ):
        assert words in refusal(changed("parts", 0, "layout", "after", to=after))


def test_a_plan_of_version_1_says_how_to_make_it_again() -> None:
    old = {"format": "autoddl.plan", "version": 1, "fingerprint": "0" * 16, "mesh": "[gpu 2]"}
    assert refusal(json.dumps(old)) == f"a.json: version 1, this autoddl reads 4; {REMEDY}"


def test_no_bytes_make_anything_but_a_plan_or_a_line() -> None:
    """Cut off, changed, doubled and lost bytes of a file."""
    whole, draw = GOLDEN.read_bytes(), Random(0)
    compact = json.dumps(json.loads(whole)).encode()
    read = 0
    for number in range(600):
        data = bytearray(compact)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            kind = number % 4
            if kind == 0:
                del data[at:]
                data = data or bytearray(b"{")
            elif kind == 1:
                data[at] = draw.randrange(256)
            elif kind == 2:
                data[at:at] = compact[at : at + draw.randint(1, 40)]
            else:
                del data[at : at + draw.randint(1, 40)]
        try:
            found = codec.decode(bytes(data), "a.json", engines.model)
        except AutoDDLError as error:
            assert "\n" not in str(error) and len(str(error)) < 1500
        else:
            assert found.parts
            read += 1
    assert read < 200


if __name__ == "__main__":
    plan().save(GOLDEN)
