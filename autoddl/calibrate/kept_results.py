"""Results that are kept as they come, in a file of JSON lines: an interrupted command goes on from it.

The first line names what they are of, and each of the others has one result:

    {"format": "autoddl.fit_device.partial", "settings": {"ranks": 2, "quick": true, "ops": []}}
    {"source": "rows 256x512", "ops": [{"op_type": "matmul", "seconds": 0.0012, …}]}
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from autoddl import store
from autoddl.errors import AutoDDLError

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class KeptResults(ABC, Generic[K]):
    """What came of the parts that are done: `found`."""

    kind: ClassVar[str]
    """Of its files."""
    anew: str = "--fresh starts anew"
    """What to do where a file is of something else."""

    def __init__(self, settings: Mapping[str, Any], partial: Path | None, *, fresh: bool) -> None:
        """Read what the file has, or make it; without a path nothing is kept.

        Raises:
            AutoDDLError: it is of other settings, not such a file, or cannot be written.
        """
        self.partial = partial
        self.found: dict[K, Any] = {}
        head = {"format": f"autoddl.{self.kind}.partial", "settings": settings}
        head = json.loads(json.dumps(head))
        if partial is not None:
            with _explained(partial):
                if fresh or not partial.exists() or not partial.read_bytes().strip():
                    partial.write_text(json.dumps(head) + "\n")
                else:
                    self._resume(partial, head)

    @abstractmethod
    def read(self, line: Any) -> tuple[K, Any]:
        """Return the part that a line is of, and what came of it.

        Raises:
            ValueError, KeyError, TypeError: the line is damaged.
        """

    def add(self, line: Any) -> K:
        """Take a line and keep it; return the part that it is of.

        Raises:
            AutoDDLError: the file cannot be written.
        """
        part, value = self.read(line)
        self.found[part] = value
        if self.partial is not None:
            with _explained(self.partial):
                store.append(self.partial, line)
        return part

    def forget(self) -> None:
        """Delete the file: all is measured and written."""
        if self.partial is not None:
            self.partial.unlink(missing_ok=True)

    def _resume(self, partial: Path, head: Mapping[str, Any]) -> None:
        values, damaged = store.read(partial)
        seen = values.pop(1, None)
        if not isinstance(seen, dict) or seen.get("format") != head["format"]:
            raise AutoDDLError(f"{partial}: not a file of partial results; {self.anew}")
        old, new = seen.get("settings") or {}, head["settings"]
        other = [f"{k} {old.get(k)!r} instead of {v!r}" for k, v in new.items() if old.get(k) != v]
        if other:
            raise AutoDDLError(
                f"{partial}: partial results of other settings: {', '.join(other)}; "
                f"give the same ones to go on, or {self.anew}"
            )
        for number, value in values.items():
            try:
                part, result = self.read(value)
            except (ValueError, KeyError, TypeError):
                damaged.append(number)
            else:
                self.found[part] = result
        for number in damaged:
            logger.warning(
                "%s: line %d is truncated or damaged and is left out; its part is measured again",
                partial, number,
            )  # fmt: skip


@contextmanager
def _explained(partial: Path) -> Iterator[None]:
    """Say what to do where a file of partial results cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise AutoDDLError(
            f"partial results {partial}: {error.strerror}; make room there or give another output "
            "with -o"
        ) from None
