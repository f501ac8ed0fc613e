"""The file of a program: golden text, what is wrong in damaged ones, and bytes changed at random."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op, ParameterGroup, Program
from tests.sbp.program.test_ir import small_program
from tests.support.layers import equal_runs
from tests.support.programs import mlp, transformer

GOLDEN = Path(__file__).with_name("program_v1.json")

Json = dict[str, Any]


def golden_program() -> Program:
    """Return a program with attributes of every kind, those among them that JSON lacks."""
    program = small_program()
    fill = (("finite", False), ("name", "-inf"), ("value", -math.inf), ("zeros", (0.0, 0)))
    masked = Op("mask", "masked_fill", (("x_0", "y"),), (), fill, module="mask.0")
    return replace(program, ops=(*program.ops, masked))


def grouped() -> Program:
    """Return a program that tells how its optimizer treats two groups of parameters."""
    program = mlp()
    first, *others = (p.tensor for p in program.parameters if p.update is not None)
    warm = ("linear_lr", (("end_factor", 1.0), ("total_iters", 4)))
    both = ("sequential_scheduler", (("milestones", (4,)), ("schedulers", (warm, ("step", ())))))
    groups = (
        ParameterGroup((first,), 0.1, both, 0.01),
        ParameterGroup(tuple(others), 0.2, clip=(0.5, math.inf)),
    )
    constants = ((others[0], "0123456789abcdef"),)
    return replace(program, groups=groups, constants=constants)


def plain(program: Program) -> Json:
    """Return the JSON form as the standard library reads it."""
    data: Json = json.loads(json.dumps(program.to_json()))
    return data


def test_the_golden_file_is_what_is_written_and_read(tmp_path: Path) -> None:
    """Where this fails the format has changed: give it another version."""
    program = golden_program()
    assert Program.load(GOLDEN) == program
    program.save(tmp_path / "program.json")
    assert json.loads((tmp_path / "program.json").read_text()) == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    "make", [small_program, golden_program, mlp, lambda: transformer(layers=3), grouped]
)
def test_save_and_load(make: Callable[[], Program], tmp_path: Path) -> None:
    program = make()
    program.save(tmp_path / "program.json")
    loaded = Program.load(tmp_path / "program.json")
    assert loaded == program == Program.from_json(plain(program))
    assert loaded.fingerprint == program.fingerprint
    assert [type(v) for op in loaded.ops for _, v in op.attrs] == [
        type(v) for op in program.ops for _, v in op.attrs
    ]
    assert hash(loaded.ops[0]) == hash(program.ops[0])


def test_equal_attributes_shapes_and_names_are_kept_once() -> None:
    loaded = Program.from_json(plain(transformer(layers=3)))
    attrs = {id(op.attrs) for op in loaded.ops}
    assert len(attrs) == len({repr(op.attrs) for op in loaded.ops}) < len(loaded.ops) / 4
    assert len({id(t.shape) for t in loaded.tensors}) == len({t.shape for t in loaded.tensors})
    names = {t.name: t.name for t in loaded.tensors}
    assert all(names[tensor] is tensor for op in loaded.ops for _, tensor in op.operands)


def refusal(data: object) -> str:
    text = data if isinstance(data, bytes) else json.dumps(data)
    with pytest.raises(AutoDDLError) as caught:
        Program.decode(text, "program file p.json")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("program file p.json: ")
    assert message.endswith("; capture the graph again")
    return message.removeprefix("program file p.json: ").removesuffix("; capture the graph again")


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    small_program().save(path)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(AutoDDLError, match=r"program\.json: .*; capture the graph again"):
        Program.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AutoDDLError, match=r"program\.json: .*; capture the graph again"):
        Program.load(path)
    with pytest.raises(AutoDDLError, match=r"absent\.json: .*; capture the graph again"):
        Program.load(tmp_path / "absent.json")


@pytest.mark.parametrize("data", [[], {}, "text", None, {"format": "autoddl.plan", "version": 1}])
def test_other_files(data: object) -> None:
    assert refusal(data) == "not a program"


@pytest.mark.parametrize("version", [0, 2, "1", True, None, "x" * 1000])
def test_other_versions(version: object) -> None:
    message = refusal(plain(small_program()) | {"version": version})
    assert message.startswith(f"version {repr(version)[:100]}")
    assert message.endswith(", this autoddl reads 1")
    assert len(message) < 300


def test_infinity_as_older_versions_wrote_it() -> None:
    text = GOLDEN.read_text().replace('{"float": "-inf"}', "-Infinity")
    assert refusal(text.encode()).startswith("not JSON (")


def put(path: str, value: object) -> Callable[[Json], None]:
    """Return what puts a value at a path of keys and places into the JSON form."""
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]

    def change(data: Any) -> None:
        for key in keys:
            data = data[key]
        data[last] = value

    return change


GROUP = {
    "parameters": ["w"], "learning_rate": 0.1, "schedule": [], "weight_decay": 0.0, "clip": [],
}  # fmt: skip
NO_TENSOR = "is no tensor of the program"
DAMAGE: dict[str, tuple[Callable[[Json], None], str]] = {
    "ops of another type": (put("ops", 3), "$.ops: expected `array`, got `int`: 3"),
    "an op that lacks fields": (
        put("ops.1", {"name": "fc"}),
        "$.ops[1]: object missing required field `type`: {'name': 'fc'}",
    ),
    "an unknown field": (
        put("ops.1.colour", 3), "$.ops[1]: object contains unknown field `colour`: {'name': 'act'"
    ),
    "a missing field": (lambda data: data.pop("loss"), "$: object missing required field `loss`"),
    "a text for a dtype": (put("tensors.0.dtype", 7), "$.tensors[0].dtype: expected `str`, got"),
    "an unknown dtype": (
        put("tensors.0.dtype", "int7"),
        "$.tensors[0].dtype: 'int7' is none of float16, bfloat16, float32,",
    ),
    "an unknown role": (put("tensors.1.role", "hero"), "$.tensors[1].role: 'hero' is none of par"),
    "an unknown phase": (put("ops.0.phase", "now"), "$.ops[0].phase: 'now' is none of forward, "),
    "a size that is no number": (
        put("tensors.2.shape.1", "2"), "$.tensors[2].shape[1]: expected `int`, got `str`: '2'"
    ),
    "a size with a fraction": (put("tensors.2.shape.1", 2.5), "$.tensors[2].shape[1]: expected `i"),
    "a truth as a size": (put("tensors.2.shape.1", True), "$.tensors[2].shape[1]: expected `int`"),
    "a size below zero": (
        put("tensors.2.shape", [4, -1]), "$.tensors[2].shape: (4, -1) is no shape of a tensor"
    ),
    "a tensor of too many bytes": (
        put("tensors.2.shape", [1 << 40, 1 << 40]), "$.tensors[2].shape: (1099511627776, 10995"
    ),
    "two tensors of one name": (
        put("tensors.2.name", "w"), "$.tensors[2].name: 'w' names two of them"
    ),
    "two ops of one name": (put("ops.1.name", "fc"), "$.ops[1].name: 'fc' names two of them"),
    "an op that reads no tensor": (
        put("ops.1.inputs.0.1", "q"), f"$.ops[1]: 'q' {NO_TENSOR}"
    ),
    "an op that makes no tensor": (
        put("ops.1.outputs.0.1", "q"), f"$.ops[1]: 'q' {NO_TENSOR}"
    ),
    "an operand without tensor": (
        put("ops.1.inputs.0", ["x_0"]), "$.ops[1].inputs[0]: expected `array` of length 2"
    ),
    "ops out of order": (
        lambda data: data["ops"].reverse(), "$.ops[0].inputs: 'y' is read before an op makes it"
    ),
    "an input that is no tensor": (put("inputs.0", "q"), f"$.inputs: 'q' {NO_TENSOR}"),
    "inputs that are none": (put("inputs", None), "$.inputs: expected `array`, got `null`: None"),
    "a loss that is no tensor": (put("loss", "q"), f"$.loss: 'q' {NO_TENSOR}"),
    "a state that is no tensor": (
        put("parameters.0.states", ["q"]), f"$.parameters[0]: 'q' {NO_TENSOR}"
    ),
    "states that are none": (put("parameters.0.states", None), "$.parameters[0].states: expected "),
    "an update that is no op": (
        put("parameters.0.update", "q"), "$.parameters[0].update: 'q' is no op of the program"
    ),
    "an update without a gradient": (
        put("parameters.0.gradient", None), "$.parameters[0]: 'w' needs both a gradient and an up"
    ),
    "a name of two lines": (
        put("tensors.0.name", "x\npwned()"), "$.tensors[0].name: name 'x\\npwned()'; allowed is t"
    ),
    "a module that turns text": (
        put("ops.0.module", "\u202efc"), "$.ops[0]: name '\\u202efc'; allowed is text without l"
    ),
    "an operand with a control": (
        put("ops.0.inputs.0.0", "\u001ba_0"), "$.ops[0]: name '\\x1ba_0'; allowed is text with"
    ),
    "a constant that is no variable": (
        put("constants", [["x", "0"]]), "$.constants[0]: 'x' is no variable of the program"
    ),
    "another device": (put("device", "cuda'"), "$.device: device \"cuda'\"; allowed are cpu, cuda"),
    "attributes without values": (
        put("ops.0.attrs.0", ["alpha"]), "$.ops[0].attrs[0]: expected `array` of length 2"
    ),
    "an object as an attribute": (
        put("ops.0.attrs.1", ["alpha", {"a": 1}]), "$.ops[0].attrs[1][1]: {'a': 1} is no attribute"
    ),
    "a group of what is not trained": (
        put("groups", [{**GROUP, "parameters": ["w", "x"]}]),
        "$.groups[0].parameters: 'x' is trained by no update or in two groups",
    ),
    "two groups of one parameter": (
        put("groups", [GROUP, GROUP]), "$.groups[1].parameters: 'w' is trained by no update or in"
    ),
    "a parameter in no group": (
        put("groups", [{**GROUP, "parameters": []}]), "$.groups: 'w' is in no group"
    ),
    "a norm without its order": (
        put("groups", [{**GROUP, "clip": [0.5]}]), "$.groups[0].clip: (0.5,) is neither [] nor a no"
    ),
    "a learning rate in words": (
        put("groups", [{**GROUP, "learning_rate": "0.1"}]), "$.groups[0].learning_rate: expected `f"
    ),
    "lists in lists": (
        put("ops.0.attrs.1.1", [[[[[[[[[]]]]]]]]]), "$.ops[0].attrs[1][1][0][0][0][0][0][0][0]: "
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_with_its_path(name: str) -> None:
    change, told = DAMAGE[name]
    data = plain(golden_program())
    change(data)
    assert refusal(data).startswith(told)


def test_long_values_are_cut() -> None:
    data = plain(golden_program())
    data["tensors"][0]["dtype"] = "x" * 5000
    assert len(refusal(data)) < 400
    data["ops"][1] = {"name": "x" * 5000}
    assert len(refusal(data)) < 400


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"", b"{", b"\x00", b"NaN"])
def test_what_is_no_json(text: bytes) -> None:
    assert refusal(text).startswith("not JSON (")


def test_deep_attributes() -> None:
    text = json.dumps(plain(small_program())).replace("[2, [3, 4]]", "[" * 90_000 + "]" * 90_000)
    assert refusal(text.encode()).startswith("not JSON (")


def test_tensors_that_only_ops_name_are_looked_up_too() -> None:
    program = replace(small_program(), inputs=(), outputs=(), parameters=())
    assert Program.from_json(plain(program)) == program
    data = plain(replace(program, tensors=program.tensors[1:]))
    assert refusal(data) == f"$.ops[0]: {program.tensors[0].name!r} {NO_TENSOR}"


def altered(text: bytes, draw: random.Random) -> bytes:
    """Return a text with some bytes changed, left out, repeated, or put elsewhere."""
    data = bytearray(text)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, kind = draw.randrange(len(data)), draw.randrange(5)
        some = slice(at, at + draw.choice((1, 2, 8, 40)))
        if kind == 0:
            data[at] = draw.randrange(256)
        elif kind == 1:
            data[at : at + 1] = draw.choice((b'"', b"[", b"]", b"{", b"}", b",", b":", b"0", b"-",
                                             b"9" * 30, b"1e999", b"null", b"\\u0000"))  # fmt: skip
        elif kind == 2:
            del data[some]
        elif kind == 3:
            data[at:at] = data[some]
        else:
            there = draw.randrange(len(data))
            data[there : there + (some.stop - at)] = data[some]
    return bytes(data)


@pytest.mark.parametrize("part", range(4))
def test_changed_bytes_are_refused_in_one_line_or_make_another_program(part: int) -> None:
    """What is read has all that planning looks up: order, kinds, sizes, blocks, fingerprints."""
    draw = random.Random(part)
    texts = [GOLDEN.read_bytes(), json.dumps(mlp(4, (4, 4, 4)).to_json()).encode()]
    read = 0
    for _ in range(1000):
        text = altered(draw.choice(texts), draw)
        try:
            program = Program.decode(text, "p.json")
        except AutoDDLError as error:
            message = str(error)
            assert message.startswith("p.json: ") and message.endswith("; capture the graph again")
            assert "\n" not in message and len(message) < 700, message
            continue
        read += 1
        assert Program.from_json(plain(program)) == program
        assert len(program.fingerprint + program.structure) == 32
        assert len(program.columns.size_bytes) == len(program.tensors)
        assert (program.columns.waits[0] > program.columns.waits[1]).all()
        assert len(program.blocks.ops.layer) == len(program.columns.kind) == len(program.ops)
        assert all(run.repeat.count > 1 for run in equal_runs(program.blocks))
    assert 20 < read < 950
