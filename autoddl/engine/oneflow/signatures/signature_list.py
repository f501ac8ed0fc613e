"""Ask the engine for its own list of valid one-axis signatures of an op.

Disposable child processes (`signature_child`) do the asking: some questions abort the engine, and then
only the op that was asked last is lost. Answers are kept on disk.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import autoddl
from autoddl.engine.oneflow.signatures.signature_cache import SignatureCache
from autoddl.sbp.program import freeze
from autoddl.sbp.program.ops_and_tensors import UNREAD
from autoddl.sbp.rules.registry import OpView, Shape, Signature
from autoddl.sbp.state import B, NdSbp

logger = logging.getLogger(__name__)

START_LIMIT_S, ANSWER_LIMIT_S = 60.0, 20.0
NO_INPUTS = "the op has no inputs, so the engine gives no list"
_CHILD = ("-m", "autoddl.engine.oneflow.signatures.signature_child")
_OF_RANKS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Query:
    """All that the list of an op depends on.

    `inputs` are (operand, logical shape, dtype name), operands are named as in Op; `ranks` is the size
    of the mesh axis.
    """

    type: str
    attrs: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, Shape, str], ...]
    outputs: tuple[str, ...]
    ranks: int

    @classmethod
    def of(cls, view: OpView, dtypes: Mapping[str, str], ranks: int) -> Query:
        """Ask about an op, given the dtype names of its inputs."""
        inputs = tuple((name, tuple(view.shape[name]), dtypes[name]) for name in view.inputs)
        attrs = tuple(
            (name, freeze(value)) for name, value in sorted(view.attr.items()) if name != UNREAD
        )
        return cls(view.type, attrs, inputs, view.outputs, ranks)


@dataclass(frozen=True)
class SignatureList:
    """The engine's one-axis signatures (all-broadcast among them), or why there is none (None)."""

    signatures: tuple[Signature, ...] | None
    reason: str = ""


def signature_lists(
    queries: Sequence[Query],
    *,
    cache: SignatureCache | None = None,
    start_limit_s: float = START_LIMIT_S,
    answer_limit_s: float = ANSWER_LIMIT_S,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SignatureList, ...]:
    """Return the engine's list for every query.

    The engine filters by its inputs only and lets uneven cuts pass: the caller checks divisibility.
    `cache` None asks without reading or keeping answers; `progress` gets (answered, all).
    """
    found: dict[Query, SignatureList] = {}
    for query in queries:
        if query.ranks == 1 or not query.inputs:
            found[query] = _trivial(query)
        elif cache is not None and (kept := _decode(cache.get(asdict(query)))) is not None:
            found[query] = kept
    asked = [query for query in dict.fromkeys(queries) if query not in found]
    total = len(found) + len(asked)
    for query, answer, keep in _ask(asked, start_limit_s, answer_limit_s):
        found[query] = answer
        if cache is not None and keep:
            cache.put(asdict(query), _encode(answer))
        if progress is not None:
            progress(len(found), total)
    return tuple(found[query] for query in queries)


def _trivial(query: Query) -> SignatureList:
    if not query.inputs:
        return SignatureList(None, NO_INPUTS)
    everything = (*(name for name, _, _ in query.inputs), *query.outputs)
    return SignatureList((dict.fromkeys(everything, B),))


def _ask(
    queries: Sequence[Query], start_limit_s: float, answer_limit_s: float
) -> Iterator[tuple[Query, SignatureList, bool]]:
    """Yield (query, answer, whether to keep it): what ends a child may be the machine's fault."""
    rest = list(queries)
    while rest:
        with _Child(rest) as child:
            started = child.line(start_limit_s) is not None
            while started and rest and (line := child.line(answer_limit_s)) is not None:
                yield rest.pop(0), _decode(line) or SignatureList(None, f"got {line!r}"), True
            if rest and started:
                yield rest.pop(0), SignatureList(None, child.end()), False
            elif rest:
                reason = f"OneFlow does not start: {child.end()}"
                yield from ((query, SignatureList(None, reason), False) for query in rest)
                return


class _Child:
    """A process that answers a batch of queries, one JSON line each, after one that says it runs."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="autoddl-")
        folder = Path(self._folder.name)
        task = folder / "queries.json"
        task.write_text(json.dumps([asdict(query) for query in queries]))
        self._stderr = folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *_CHILD, str(task)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
                env=_environment(), cwd=folder, start_new_session=True,
            )  # fmt: skip
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()
        self._limit_s: float | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=1.0)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        self._folder.cleanup()

    def _read(self, stream: TextIO) -> None:
        with contextlib.suppress(ValueError):  # closed while we read
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)

    def line(self, limit_s: float) -> Any:
        """Return the next line's value, or None where the child ended or took longer than the limit."""
        try:
            text = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._limit_s = limit_s
            return None
        try:
            return None if text is None else json.loads(text)
        except ValueError:  # it ended while it wrote
            return None

    def end(self) -> str:
        """End the child and say in one line why it gave no answer."""
        if self._limit_s is not None:
            return f"no answer within {self._limit_s:g} s"
        code = self._process.wait()
        text = self._stderr.read_text(errors="replace")
        check = re.search(r"Check failed: (.*)", text)
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "no message")
        return f"the engine stopped (exit code {code}): {check[1] if check else last}".strip()


def _environment() -> dict[str, str]:
    """Return our environment for a process of its own: not one of the ranks that may run us."""
    root = str(Path(autoddl.__file__).parent.parent)
    kept = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
    given = filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([root, *map(os.path.abspath, given)])
    return {**kept, "PYTHONPATH": path, "GLOG_minloglevel": "2", "OMP_NUM_THREADS": "1"}


def _encode(answer: SignatureList) -> dict[str, Any]:
    if answer.signatures is None:
        return {"reason": answer.reason}
    texts = [{name: str(sbp) for name, sbp in s.items()} for s in answer.signatures]
    return {"signatures": texts}


def _decode(data: Any) -> SignatureList | None:
    """Read an answer of the child or the cache; None where it is no answer."""
    if not isinstance(data, dict):
        return None
    if "reason" in data:
        return SignatureList(None, str(data["reason"]))
    try:
        found = [
            {name: NdSbp.parse(text)[0] for name, text in entry.items()}
            for entry in data["signatures"]
        ]
    except (autoddl.AutoDDLError, AttributeError, KeyError, TypeError):
        return None
    return SignatureList(tuple(found))
