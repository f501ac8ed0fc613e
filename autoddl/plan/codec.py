"""The file of a plan: versioned JSON with states as "(S0, B)", meshes as "[gpu 4]"."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache, partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from autoddl import json_files
from autoddl.engine.model import CollectiveQueue, EngineModel, counted
from autoddl.errors import AutoDDLError
from autoddl.json_files import Bytes, Count, parsed, shown
from autoddl.json_files import decode as decode_file
from autoddl.perfmodel.boxing_prices import GroupedGather
from autoddl.perfmodel.pipeline.pipeline_step import StageWork
from autoddl.perfmodel.pipeline.schedules import CREDITS
from autoddl.plan.parts import Estimate, ModuleCost, Part, Transfer
from autoddl.plan.search_report import SearchReport
from autoddl.plan.value import PlanValue
from autoddl.sbp.layout import OUTPUT, Layout, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.allowed import MOST_TEXT, check_name
from autoddl.sbp.state import NdSbp
from autoddl.search.reductions.objective import OBJECTIVES

FORMAT, FORMAT_VERSION = "autoddl.plan", 4
# Readable, too: there parts have ranks that follow each other, from `first_rank` on.
_OF_RANGES = 3
# As well: there ops go as they are ready, and the objective "time" is what is "sum" now.
_OF_SUMS = 2
AGAIN = "plan again with autoddl.optimize"

Engines = Callable[[str | None], EngineModel]
_Json = TypeVar("_Json")


class _LayoutFile(msgspec.Struct, forbid_unknown_fields=True):
    signatures: dict[str, dict[str, NdSbp]]
    variables: dict[str, NdSbp]
    inputs: dict[str, NdSbp]
    redistributions: tuple[Redistribution, ...]
    after: dict[str, str] = {}


class _PartFile(msgspec.Struct, forbid_unknown_fields=True):
    mesh: str
    layout: _LayoutFile
    arrivals: tuple[Transfer, ...]
    recomputed: bool
    in_flight: Count
    work: StageWork | None
    memory_bytes: Bytes
    rows: tuple[ModuleCost, ...]
    ranks: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    device_kinds: tuple[str, ...] = ()
    grouped: tuple[GroupedGather, ...] = ()
    first_rank: int | None = None


class _Body(msgspec.Struct, Generic[_Json], forbid_unknown_fields=True, kw_only=True):
    program: _Json
    profile: str
    parts: tuple[_PartFile, ...]
    estimate: Estimate
    search: SearchReport
    baselines: tuple[Estimate, ...]
    micro_batches: Count
    memory_limit_bytes: Bytes | None
    engine: str | None
    compute_stream: bool
    duplex: bool = False
    queue: CollectiveQueue | None = None
    orders: tuple[str, ...] = ()


class _File(_Body[_Json], Generic[_Json], forbid_unknown_fields=True, kw_only=True):
    format: str
    version: int
    digest: str = ""


class _Head(msgspec.Struct):
    version: Any = None


def to_json(plan: PlanValue) -> dict[str, Any]:
    head = {"format": FORMAT, "version": FORMAT_VERSION}
    return head | cast(dict[str, Any], _plain(plan))


def encode(plan: PlanValue) -> bytes:
    return msgspec.json.encode(to_json(plan))


def save(plan: PlanValue, path: str | Path) -> None:
    """Write the file of a plan.

    Raises:
        AutoDDLError: it can't be written.
    """
    json_files.write(path, encode(plan), indent=1)


_text = lru_cache(maxsize=1 << 12)(str)
_UNSAID: dict[str, Any] = {  # what files leave out
    "queue": None, "trials": (), "pins": (), "room": 1.0, "device_kinds": (), "grouped": (),
    "orders": (),
}  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, NdSbp):
        return _text(value)
    if isinstance(value, Mesh):
        return value.describe()
    if isinstance(value, EngineModel):
        return value.name
    if isinstance(value, Program):
        return value.to_json()
    if is_dataclass(value):
        if isinstance(value, Layout):  # which has columns where its file has names
            return {n: _plain(getattr(value, n)) for n in _LayoutFile.__struct_fields__}
        every = {f.name: getattr(value, f.name) for f in fields(value)}
        return {n: _plain(v) for n, v in every.items() if n not in _UNSAID or v != _UNSAID[n]}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def load(path: str | Path, engine_of: Engines) -> PlanValue:
    """Read the file of a plan; `engine_of` finds its engine by name.

    Raises:
        AutoDDLError: the file is missing, truncated, changed, no plan, or of another version.
    """
    return json_files.read(
        path, partial(decode, engine_of=engine_of), what="plan file", remedy=AGAIN
    )


def decode(text: bytes | str, where: str, engine_of: Engines) -> PlanValue:
    """Return the plan of a file's text; `where` names the file in errors.

    Raises:
        AutoDDLError: not a plan, another version, or damaged; says where in the file.
    """
    file, program = _read(text, where)
    try:
        plan = PlanValue(
            program=program,
            engine=_engine(file.engine, engine_of),
            parts=tuple([_part(program, file, number) for number in range(len(file.parts))]),
            **{f.name: getattr(file, f.name) for f in fields(PlanValue) if f.name not in _OWN},
        )
        _check(plan)
    except AutoDDLError as error:
        raise AutoDDLError(f"{where}: {error}; {AGAIN}") from None
    return plan


_OWN = ("program", "engine", "parts")


def _engine(name: str | None, engine_of: Engines) -> EngineModel:
    try:
        return engine_of(name)
    except AutoDDLError as error:
        raise AutoDDLError(f"$.{error}") from None


def _read(text: bytes | str, where: str) -> tuple[_Body[Any], Program]:
    """Return the values of a file, and its program; if that fails slowly, which tells what is wrong."""
    inside, version = f"{where}: $.program", FORMAT_VERSION
    try:
        told = msgspec.json.decode(text, type=_Head).version
        if told in (_OF_SUMS, _OF_RANGES):
            version = told
        file = msgspec.json.decode(text, type=_File[msgspec.Raw], dec_hook=parsed)
        if (file.format, file.version) == (FORMAT, version):
            return _of_today(file, version, where), Program.decode(file.program, inside)
    except (ValueError, RecursionError):
        pass
    form = FORMAT, version
    body = decode_file(text, _Body[dict[str, Any]], form=form, where=where, remedy=AGAIN)
    return _of_today(body, version, where), Program.from_json(body.program, inside)


def _of_today(body: _Body[_Json], version: int, where: str) -> _Body[_Json]:
    """Return the values of a file of an earlier version as they are called now."""
    if version == _OF_SUMS and body.search.objective == "time":
        warnings.warn(
            f"{where}: version {version}: its gap is of the sum of compute and communication, not of "
            f"the step; {AGAIN} for that",
            stacklevel=5,
        )
        body.search = replace(body.search, objective="sum")
    return body


def _part(program: Program, body: _Body[Any], number: int) -> Part:
    file, at = body.parts[number], f"$.parts[{number}]"
    if file.in_flight < 1:
        raise AutoDDLError(f"{at}: {file.in_flight} in flight")
    try:
        mesh = Mesh.parse(file.mesh)
    except AutoDDLError:
        raise AutoDDLError(f"{at}.mesh: {shown(file.mesh)} is no mesh such as '[gpu 4]'") from None
    for gather in file.grouped:
        if gather.axis not in range(mesh.ndim) or mesh.cuts[gather.axis] == mesh.shape[gather.axis]:
            raise AutoDDLError(
                f"{at}.grouped: axis {gather.axis}, which has no shares on mesh {mesh}"
            )
    for sent in file.arrivals:
        if sent.target != number or sent.source not in range(len(body.parts)):
            raise AutoDDLError(f"{at}.arrivals: from part {sent.source} to {sent.target}")
    _check_names(program, file, at)
    kept = file.layout
    states = [*kept.variables.values(), *kept.inputs.values()]
    states += [state for each in kept.signatures.values() for state in each.values()]
    states += [state for item in kept.redistributions for state in item.path]
    states += [item.arrival for item in file.arrivals if item.arrival is not None]
    for state in states:
        if len(state) != mesh.ndim:
            raise AutoDDLError(f"{at}.layout: state {state} on mesh {mesh}")
    layout = Layout.of(
        program, kept.signatures, kept.variables, kept.inputs, kept.redistributions, kept.after
    )
    ranks = file.ranks
    if file.first_rank is not None:
        ranks = tuple(range(file.first_rank, file.first_rank + mesh.size))
    if len(ranks) != mesh.size or ranks[0] < 0 or sorted(set(ranks)) != list(ranks):
        raise AutoDDLError(
            f"{at}: ranks {shown(list(ranks), 150)}; mesh {mesh} has {mesh.size}, which ascend from 0 on"
        )
    told = file.device_kinds
    if told and (len(told) != mesh.size or set(told) != set(file.kinds)):
        raise AutoDDLError(
            f"{at}.device_kinds: {shown(list(told), 150)}; mesh {mesh} has {mesh.size} devices, of kinds "
            f"{shown(list(file.kinds), 100)}"
        )
    own = {f.name: getattr(file, f.name) for f in fields(Part) if f.name not in _OF_PART}
    return Part(**own, mesh=mesh, layout=layout, ranks=ranks)


_OF_PART = ("mesh", "layout", "ranks")


def _check_names(program: Program, part: _PartFile, at: str) -> None:
    """Raise where a part names what is not in the program."""
    layout, known = part.layout, program.columns.number
    for op, signature in layout.signatures.items():
        if op not in program.op or signature.keys() != dict(program.op[op].operands).keys():
            raise AutoDDLError(f"{at}.layout.signatures: {shown(op)} is no op of the program")
    moved = [item.tensor for item in layout.redistributions]
    moved += [item.tensor for item in part.arrivals]
    for name in (*layout.variables, *layout.inputs, *moved):
        if name not in known:
            raise AutoDDLError(f"{at}: {shown(name)} is no tensor of the program")
    for name in layout.inputs:
        if name not in program.inputs:
            raise AutoDDLError(f"{at}.layout.inputs: {shown(name)} is no input of the program")
    if layout.after:
        _check_order(program, layout.after, f"{at}.layout.after")
    for item in layout.redistributions:
        for op in (item.after, *(op for op, _ in item.readers)):
            if op not in program.op and op not in ("", OUTPUT):
                raise AutoDDLError(f"{at}.layout.redistributions: {shown(op)} is no op")


def _check_order(program: Program, after: Mapping[str, str], at: str) -> None:
    """Raise where ops wait for what is none, or for each other, which no engine survives."""
    readers, updates = program.precedence
    waits = [set(ops) for ops in program.columns.before]
    for reader, update in zip(readers.tolist(), updates.tolist(), strict=True):
        waits[update].add(reader)
    for op, before in after.items():
        for name in (op, before):
            if name not in program.op:
                raise AutoDDLError(f"{at}: {shown(name)} is no op of the program")
        waits[program.columns.place[op]].add(program.columns.place[before])
    try:
        TopologicalSorter(dict(enumerate(waits))).prepare()
    except CycleError as error:
        op = program.ops[error.args[1][0]].name
        raise AutoDDLError(f"{at}: op {shown(op)} waits for itself") from None


def _check(plan: PlanValue) -> None:
    """Raise where values don't fit each other, or are no text for one line."""
    if not plan.parts or plan.micro_batches < 1:
        raise AutoDDLError(f"$: {len(plan.parts)} parts, {plan.micro_batches} micro-batches")
    _check_found(plan)
    owner = dict[int, int]()
    for number, part in enumerate(plan.parts):
        for rank in part.ranks:
            if rank in owner:
                raise AutoDDLError(f"$.parts: rank {rank} is in part {owner[rank]} and in {number}")
            owner[rank] = number
        for sent in part.arrivals:
            source, at = plan.parts[sent.source].mesh, f"$.parts[{number}].arrivals"
            if any(len(state) != source.ndim for state in sent.path):
                raise AutoDDLError(f"{at}: path {sent.path} on mesh {source}")
            if sent.arrival is None and source.shape != part.mesh.shape:
                raise AutoDDLError(f"{at}: no arrival from mesh {source} on mesh {part.mesh}")
    missing = set(plan.program.op).difference(*[p.layout.signatures for p in plan.parts])
    if missing:
        raise AutoDDLError(f"$.parts: no states for op {shown(min(missing))}")
    if plan.search.objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise AutoDDLError(f"$.search.objective: {shown(plan.search.objective)}; known are {known}")
    if all(part.work is not None for part in plan.parts):
        _ = plan.pipeline_step  # which checks itself
    if plan.orders:
        _check_orders(plan)
    found = plan.search
    names = [plan.profile, found.solver, *(each.name for each in (plan.estimate, *plan.baselines))]
    names += [*(row.module for row in plan.rows), *(each.mesh for each in found.outcomes)]
    names += [text for each in found.trials for text in (each.states, each.name)]
    texts = [*(row.signature for row in plan.rows), *(each.note for each in found.outcomes)]
    for text in names:
        check_name(text)
    for text in (*texts, *(each.note for each in found.trials)):
        check_name(text, "text", MOST_TEXT)
    for item in plan.inputs:
        item.local_slice(0)


def _check_orders(plan: PlanValue) -> None:
    """Raise where an order is none of the stages, of no script, or keeps more than was planned."""
    if plan.engine.schedule == CREDITS or len(plan.orders) != len(plan.parts):
        raise AutoDDLError(
            f"$.orders: of {len(plan.orders)} stages; the plan has {len(plan.parts)}, for "
            f"{plan.engine.title}, which keeps {'none' if plan.engine.schedule == CREDITS else 'these'}"
        )
    for stage, (most, part) in enumerate(zip(plan.tasks.in_flight, plan.parts, strict=True)):
        if most > part.in_flight:
            raise AutoDDLError(
                f"$.parts[{stage}].in_flight: {part.in_flight}, with {most} in its order of tasks"
            )


def _check_found(plan: PlanValue) -> None:
    """Raise where a plan is not what its own search has found: more memory, other micro-batches."""
    limit, unlike = plan.memory_limit_bytes, any(part.kinds for part in plan.parts)
    needed = [counted(part.memory_bytes, plan.estimate.room) for part in plan.parts]
    if limit is not None and limit < (min(needed) if unlike else max(needed)):
        raise AutoDDLError(
            f"$.memory_limit_bytes: {limit}, but the plan needs {max(needed)}; a plan keeps to its limit"
        )
    counts = {(each.stages, each.micro_batches) for each in plan.search.outcomes}
    if counts and (len(plan.parts), plan.micro_batches) not in counts:
        raise AutoDDLError(
            f"$.micro_batches: {plan.micro_batches} through {len(plan.parts)} stages, which no search "
            "has tried"
        )
