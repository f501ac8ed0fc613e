"""The file of a program: versioned JSON, read back into equal values, each of them kept once.

A training step of GPT-3 has 11,485 ops but a few hundred different attributes: these are parsed once for
each different text. Names are interned, so that looking them up compares addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import fields
from sys import intern
from typing import Any, Generic, TypeVar

import msgspec

from autoddl.errors import AutoDDLError
from autoddl.json_files import decode as decode_file
from autoddl.json_files import shown
from autoddl.sbp.program.allowed import check_device, check_name
from autoddl.sbp.program.ops_and_tensors import (
    ITEM_BYTES,
    PHASES,
    ROLES,
    Op,
    Parameter,
    ParameterGroup,
    Tensor,
)

FORMAT = "autoddl.program"
FORMAT_VERSION = 1
AGAIN = "capture the graph again"
MOST_NESTED = 8  # lists in lists that an attribute may be
MOST_BYTES = 1 << 60  # of a tensor; what adds up some of them stays in 64 bits
_NO_TENSOR = "is no tensor of the program"

Attributes = tuple[tuple[str, Any], ...]
Pairs = tuple[tuple[str, str], ...]

_A = TypeVar("_A")


class _OpFile(msgspec.Struct, Generic[_A], forbid_unknown_fields=True, gc=False):
    name: str
    type: str
    inputs: Pairs
    outputs: Pairs
    attrs: _A
    phase: str
    module: str


class _TensorFile(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str


class _ParameterFile(msgspec.Struct, forbid_unknown_fields=True):
    tensor: str
    gradient: str | None
    states: tuple[str, ...]
    update: str | None


class _GroupFile(msgspec.Struct, forbid_unknown_fields=True):
    parameters: tuple[str, ...]
    learning_rate: float
    schedule: tuple[Any, ...]
    weight_decay: float
    clip: tuple[Any, ...]


class _Body(msgspec.Struct, Generic[_A], forbid_unknown_fields=True):
    ops: list[_OpFile[_A]]
    tensors: list[_TensorFile]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: list[_ParameterFile]
    loss: str | None
    device: str
    groups: list[_GroupFile] = []  # files of 0.1 have none
    constants: Pairs = ()


class _File(_Body[_A], Generic[_A], forbid_unknown_fields=True, kw_only=True):
    format: str
    version: int
    digest: str = ""


def encode(
    ops: Sequence[Op],
    tensors: Sequence[Tensor],
    parameters: Sequence[Parameter],
    groups: Sequence[ParameterGroup],
    constants: Pairs,
    **rest: Any,
) -> dict[str, Any]:
    """Return the JSON form of a program; `rest` are its other fields."""
    attrs = {id(op.attrs): op.attrs for op in ops}
    plain = {number: _plain(value) for number, value in attrs.items()}
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "ops": [{**_fields_of(op), "attrs": plain[id(op.attrs)]} for op in ops],
        "tensors": list(map(_fields_of, tensors)),
        "parameters": list(map(_fields_of, parameters)),
        **({"groups": list(map(_group, groups))} if groups else {}),
        **({"constants": constants} if constants else {}),
        **rest,
    }


def _fields_of(value: Op | Tensor | Parameter | ParameterGroup) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _group(group: ParameterGroup) -> dict[str, Any]:
    return {name: _plain(value) for name, value in _fields_of(group).items()}


def _plain(value: Any) -> Any:
    """Return an attribute's value as JSON has it, which knows no infinity."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def decode(text: bytes | str | msgspec.Raw, where: str) -> dict[str, Any]:
    """Return the fields of the program that a text holds; `where` names it in errors.

    Raises:
        AutoDDLError: the text is no program, of another version, or damaged; says where in it.
    """
    try:
        file, attributes = _quickly(text)
    except (ValueError, RecursionError):  # then slowly, which tells what is wrong where
        text = text if isinstance(text, str) else bytes(text)
        form = FORMAT, FORMAT_VERSION
        file = decode_file(text, _Body[Attributes], form=form, where=where, remedy=AGAIN)
        attributes = []
    try:
        return _program(file, attributes or [op.attrs for op in file.ops])
    except AutoDDLError as error:
        raise AutoDDLError(f"{where}: {error}; {AGAIN}") from None


def _quickly(text: bytes | str | msgspec.Raw) -> tuple[_Body[Any], list[Attributes]]:
    file = msgspec.json.decode(text, type=_File[msgspec.Raw])
    if (file.format, file.version) != (FORMAT, FORMAT_VERSION):
        raise ValueError
    known: dict[bytes, Attributes] = {}
    texts = [bytes(op.attrs) for op in file.ops]
    for raw in dict.fromkeys(texts):
        known[raw] = msgspec.json.decode(raw, type=Attributes)
    return file, [known[raw] for raw in texts]


def _program(file: _Body[Any], attributes: Sequence[Attributes]) -> dict[str, Any]:
    """Return the fields of a program.

    Raises:
        AutoDDLError: the path to a value that can't be, and why.
    """
    _check(check_device, file.device, "$.device")
    names = _distinct("$.tensors", [tensor.name for tensor in file.tensors])
    program: dict[str, Any] = {
        "ops": _ops(file.ops, attributes, names),
        "tensors": tuple(_tensors(file.tensors)),
        "inputs": file.inputs,
        "outputs": file.outputs,
        "parameters": tuple(map(_parameter, file.parameters)),
        "loss": file.loss,
        "device": file.device,
        "groups": tuple(_groups(file)),
        "constants": file.constants,
    }
    _check_ends(file, names)
    return program


def _damage(path: str, value: object, reason: str) -> AutoDDLError:
    return AutoDDLError(f"{path}: {shown(value)} {reason}")


def _check(check: Callable[[str], None], text: str, path: str) -> None:
    try:
        check(text)
    except AutoDDLError as error:
        raise AutoDDLError(f"{path}: {error}") from None


def _frozen(value: Any, path: str, depth: int = 0) -> Any:
    """Return an attribute's value of what JSON has for it."""
    if depth > MOST_NESTED:
        raise _damage(path, value, f"is nested more than {MOST_NESTED} deep")
    if isinstance(value, list | tuple):
        return tuple([_frozen(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)])
    if isinstance(value, dict):
        if list(value) != ["float"] or value["float"] not in ("inf", "-inf", "nan"):
            raise _damage(path, value, 'is no attribute; of objects only {"float": "inf"} is one')
        return float(value["float"])
    return value


def _distinct(path: str, names: Sequence[str]) -> dict[str, str]:
    """Return the names of ops or tensors, to be looked up.

    Raises:
        AutoDDLError: two are the same.
    """
    found: dict[str, str] = {}
    for place, name in enumerate(names):
        if name in found:
            raise _damage(f"{path}[{place}].name", name, "names two of them")
        _check(check_name, name, f"{path}[{place}].name")
        found[name] = name
    return found


def _tensors(files: Sequence[_TensorFile]) -> Iterator[Tensor]:
    """Yield the tensors; equal shapes are kept once, and checked once with each dtype."""
    forms: dict[tuple[tuple[int, ...], str], tuple[int, ...]] = {}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for place, file in enumerate(files):
        key = file.shape, file.dtype
        if file.role not in ROLES or key not in forms:
            path = f"$.tensors[{place}]"
            _check_word(f"{path}.dtype", file.dtype, ITEM_BYTES)
            _check_word(f"{path}.role", file.role, ROLES)
            size = Tensor(file.name, file.shape, file.dtype, file.role).size_bytes
            if min(file.shape, default=0) < 0 or size > MOST_BYTES:
                raise _damage(f"{path}.shape", file.shape, "is no shape of a tensor")
            forms[key] = shapes.setdefault(file.shape, file.shape)
        yield Tensor(file.name, forms[key], intern(file.dtype), intern(file.role))


def _ops(
    files: Sequence[_OpFile[Any]], attributes: Sequence[Attributes], names: Mapping[str, str]
) -> tuple[Op, ...]:
    """Return the ops, whose operands share the strings in `names`.

    Raises:
        AutoDDLError: one has no phase, or a name of another, or reads what is no tensor or made later.
    """
    _distinct("$.ops", [file.name for file in files])
    words = _words(files)
    later = {tensor for file in files for _, tensor in file.outputs}
    frozen: dict[int, Attributes] = {}  # by what they are read into, which is kept
    found = []
    for place, (file, attrs) in enumerate(zip(files, attributes, strict=True)):
        try:
            inputs = tuple([(words[operand], names[tensor]) for operand, tensor in file.inputs])
            outputs = tuple([(words[operand], names[tensor]) for operand, tensor in file.outputs])
        except KeyError as error:
            raise _damage(f"$.ops[{place}]", error.args[0], _NO_TENSOR) from None
        for _, tensor in inputs:
            if tensor in later:
                raise _damage(f"$.ops[{place}].inputs", tensor, "is read before an op makes it")
        later.difference_update([tensor for _, tensor in outputs])
        if id(attrs) not in frozen:
            frozen[id(attrs)] = _frozen(attrs, f"$.ops[{place}].attrs")
        phase = words[file.phase]
        if phase not in PHASES:
            _check_word(f"$.ops[{place}].phase", phase, PHASES)
        op = Op(
            file.name, words[file.type], inputs, outputs, frozen[id(attrs)], phase, words[file.module]
        )  # fmt: skip
        found.append(op)
    return tuple(found)


def _words(files: Sequence[_OpFile[Any]]) -> dict[str, str]:
    """Return the types, phases, modules and operands of ops, each once.

    Raises:
        AutoDDLError: one is not allowed as a name.
    """
    words: dict[str, str] = {}
    for place, file in enumerate(files):
        for text in (file.type, file.phase, file.module, *dict(file.inputs), *dict(file.outputs)):
            if text not in words:
                _check(check_name, text, f"$.ops[{place}]")
                words[text] = intern(text)
    return words


def _parameter(file: _ParameterFile) -> Parameter:
    return Parameter(file.tensor, file.gradient, file.states, file.update)


def _groups(file: _Body[Any]) -> Iterator[ParameterGroup]:
    """Yield the groups of trained parameters.

    Raises:
        AutoDDLError: a trained parameter is in none or two of them, or one is no trained parameter.
    """
    trained = {parameter.tensor for parameter in file.parameters if parameter.update is not None}
    for place, group in enumerate(file.groups):
        path = f"$.groups[{place}]"
        for name in group.parameters:
            if name not in trained:
                raise _damage(
                    f"{path}.parameters", name, "is trained by no update or in two groups"
                )
            trained.discard(name)
        clip = _frozen(group.clip, f"{path}.clip")
        if len(clip) not in (0, 2) or not all(isinstance(value, float) for value in clip):
            raise _damage(f"{path}.clip", group.clip, "is neither [] nor a norm and its order")
        schedule = _frozen(group.schedule, f"{path}.schedule")
        yield ParameterGroup(
            tuple(map(intern, group.parameters)), group.learning_rate, schedule,
            group.weight_decay, clip,
        )  # fmt: skip
    if file.groups and trained:
        raise _damage("$.groups", min(trained), "is in no group")


def _check_word(path: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        raise _damage(path, word, f"is none of {', '.join(known)}")


def _check_ends(file: _Body[Any], names: Container[str]) -> None:
    """Raise where inputs, outputs, loss or parameters name what the program has not."""
    ops = {op.name for op in file.ops}
    told = [("$.inputs", file.inputs), ("$.outputs", file.outputs)]
    told += [("$.loss", () if file.loss is None else (file.loss,))]
    for place, parameter in enumerate(file.parameters):
        path = f"$.parameters[{place}]"
        gradient = () if parameter.gradient is None else (parameter.gradient,)
        told.append((path, (parameter.tensor, *gradient, *parameter.states)))
        if (parameter.update is None) != (parameter.gradient is None):
            raise _damage(path, parameter.tensor, "needs both a gradient and an update, or neither")
        if parameter.update is not None and parameter.update not in ops:
            raise _damage(f"{path}.update", parameter.update, "is no op of the program")
    variables = {parameter.tensor for parameter in file.parameters}
    for place, (name, _) in enumerate(file.constants):
        if name not in variables:
            raise _damage(f"$.constants[{place}]", name, "is no variable of the program")
    for path, some in told:
        for name in some:
            if name not in names:
                raise _damage(path, name, _NO_TENSOR)
