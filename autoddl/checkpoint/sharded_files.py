"""Arrays in shards on disk: each rank writes the parts that it owns, and reads those that it needs.

A folder has an index and data files. Parts lie one behind the other in the files, and the index says
where, with a digest of each. New files are written beside the old ones, and then the index is replaced:
so a crash leaves the old checkpoint whole, and who reads can't see half of a new one.

    index.json    {"tensors": {"model.w": {"shape": [4, 2], "dtype": "float32", "parts": [
                      {"file": "5-1f3a.rank0", "offset": 0, "begin": [0, 0], "end": [2, 2], …}, …
    5-1f3a.rank0  rows 0 and 1 of model.w
    5-1f3a.rank1  rows 2 and 3

Parts may be cut in any way, and read in any other: rows 1 to 3 above are read from both files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from autoddl import json_files, store
from autoddl.errors import AutoDDLError, shown, why
from autoddl.json_files import Count, decode
from autoddl.sbp.program.allowed import check_name

FORMAT, FORMAT_VERSION = "autoddl.checkpoint", 1
INDEX = "index.json"
REMEDY = "give the folder of a checkpoint that step.save wrote, or an older one"

Array = npt.NDArray[Any]
Slices = tuple[slice, ...]


class Shard(NamedTuple):
    """A part of an array of a shape, and where in it that lies."""

    shape: tuple[int, ...]
    slices: Slices
    values: Array


class Piece(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where a part is, in which file and from which byte on: the elements from `begin` up to `end`."""

    file: str
    offset: int
    begin: tuple[int, ...]
    end: tuple[int, ...]
    digest: str


class Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An array: its shape, the NumPy name of its dtype, and its parts, which make it up."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Piece, ...]


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the writer knows: steps that were done, the text of a plan, the graph and its blocks."""

    steps: Count = 0
    plan: str | None = None
    graph: str = ""
    blocks: tuple[str, ...] = ()


class Index(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a checkpoint has: arrays by name, and facts."""

    tensors: dict[str, Entry]
    facts: Facts = Facts()

    @property
    def files(self) -> set[str]:
        return {part.file for entry in self.tensors.values() for part in entry.parts}


def write_shards(folder: Path, file: str, shards: Mapping[str, Shard]) -> dict[str, Entry]:
    """Write parts of arrays into one new file, on the disk when this returns; return their entries.

    Raises:
        AutoDDLError: the file can't be written; it is removed.
    """
    path, found, offset = folder / file, {}, 0
    try:
        with path.open("wb") as out:
            for name, shard in shards.items():
                data = np.ascontiguousarray(shard.values)
                view = data.reshape(-1).view(np.uint8).data
                begin = tuple([s.start for s in shard.slices])
                end = tuple([s.stop for s in shard.slices])
                part = Piece(file, offset, begin, end, hashlib.sha256(view).hexdigest())
                found[name] = Entry(shard.shape, data.dtype.name, (part,))
                out.write(view)
                offset += data.nbytes
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise AutoDDLError(
            f"checkpoint {store.told(path)}: {error.strerror}; make room, or save elsewhere"
        ) from None
    return found


def joined(entries: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for each in entries:
        for name, entry in each.items():
            before = found[name].parts if name in found else ()
            found[name] = msgspec.structs.replace(entry, parts=before + entry.parts)
    return found


def publish(folder: Path, index: Index) -> None:
    """Replace the index, so that the folder has the new checkpoint; then remove files of older ones.

    Raises:
        AutoDDLError: it can't be written, or its parts do not make up its arrays.
    """
    for name, entry in index.tensors.items():
        _check_whole(name, entry, f"checkpoint {store.told(folder)}")
    head = {"format": FORMAT, "version": FORMAT_VERSION}
    json_files.write(folder / INDEX, msgspec.json.encode(head | msgspec.to_builtins(index)))
    for path in folder.glob("*.rank*"):
        if path.name not in index.files:
            with contextlib.suppress(OSError):
                path.unlink()


def read_index(folder: str | Path) -> Index:
    """Return the index of a checkpoint.

    Raises:
        AutoDDLError: there is none, or it was changed, or is damaged.
    """
    return json_files.read(Path(folder) / INDEX, decode_index, what="checkpoint", remedy=REMEDY)


def decode_index(text: bytes | str, where: str) -> Index:
    """Return the index that a text holds; `where` names it in errors.

    Raises:
        AutoDDLError: it is none, of another version, or damaged.
    """
    index = decode(text, Index, form=(FORMAT, FORMAT_VERSION), where=where, remedy=REMEDY)
    try:
        for name in (*index.tensors, index.facts.graph, *index.facts.blocks):
            check_name(name)
    except AutoDDLError as error:
        raise AutoDDLError(f"{where}: {error}; {REMEDY}") from None
    for name, entry in index.tensors.items():
        _check_whole(name, entry, where)
    return index


def read(folder: str | Path, index: Index, name: str, slices: Slices | None = None) -> Array:
    """Return an array of a checkpoint, or a part of it.

    Raises:
        AutoDDLError: there is no such array, or a file is missing, truncated or changed.
    """
    if name not in index.tensors:
        raise AutoDDLError(f"checkpoint {store.told(folder)}: it has no {shown(name)}; {REMEDY}")
    entry = index.tensors[name]
    wanted = slices if slices is not None else tuple([slice(0, size) for size in entry.shape])
    found = np.empty([s.stop - s.start for s in wanted], dtype=entry.dtype)
    for part in entry.parts:
        both = [
            (max(s.start, begin), min(s.stop, end))
            for s, begin, end in zip(wanted, part.begin, part.end, strict=True)
        ]
        if any(begin >= end for begin, end in both):
            continue
        values = _values(Path(folder), entry, part)
        source = tuple([slice(b - at, e - at) for (b, e), at in zip(both, part.begin, strict=True)])
        goal = tuple(
            [slice(b - s.start, e - s.start) for (b, e), s in zip(both, wanted, strict=True)]
        )
        found[goal] = values[source]
    return found


def _values(folder: Path, entry: Entry, part: Piece) -> Array:
    path = folder / part.file
    shape = [end - begin for begin, end in zip(part.begin, part.end, strict=True)]
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(entry.dtype).itemsize
    try:
        with path.open("rb") as file:
            file.seek(part.offset)
            data = file.read(size)
    except (OSError, ValueError) as error:
        raise AutoDDLError(
            f"checkpoint file {store.told(path)}: {why(error, 'no such name')}; {REMEDY}"
        ) from None
    if len(data) != size or hashlib.sha256(data).hexdigest() != part.digest:
        what = "truncated" if len(data) != size else "changed after it was written"
        raise AutoDDLError(f"checkpoint file {store.told(path)}: {what}; {REMEDY}")
    return np.frombuffer(data, dtype=entry.dtype).reshape(shape)


def _check_whole(name: str, entry: Entry, where: str) -> None:
    """Raise where parts do not make up an array: each of its elements has to be in one of them."""
    count = int(np.prod(entry.shape, dtype=np.float64))
    inside = 0
    try:
        np.dtype(entry.dtype)
    except TypeError:
        raise AutoDDLError(f"{where}: dtype {shown(entry.dtype)}; {REMEDY}") from None
    for part in entry.parts:
        sides = list(zip(part.begin, part.end, entry.shape, strict=False))
        fits = len(part.begin) == len(part.end) == len(entry.shape) and part.offset >= 0
        if not fits or any(not 0 <= begin <= end <= size for begin, end, size in sides):
            raise AutoDDLError(f"{where}: {shown(name)} has a part outside of it; {REMEDY}")
        if "/" in part.file or part.file.startswith("."):
            raise AutoDDLError(f"{where}: {shown(part.file)} is no name of a file here; {REMEDY}")
        inside += int(np.prod([end - begin for begin, end, _ in sides], dtype=np.float64))
    if inside != count:
        raise AutoDDLError(f"{where}: {shown(name)} lacks parts, or has some twice; {REMEDY}")
