"""The file of partial results: what was measured before an interruption is not measured again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoddl import store
from autoddl.errors import AutoDDLError

logger = logging.getLogger(__name__)

ANEW = "--fresh starts anew"


class Finished:
    """The parts of a measurement that are done, kept in a file of JSON lines (or in memory only).

    The first line names the settings, each further one is a part. `take` makes something of a part;
    it raises ValueError, KeyError or TypeError where the part is damaged, which is then left out.
    """

    def __init__(
        self, path: Path | None, kind: str, settings: Mapping[str, Any],
        take: Callable[[Any], None], *, fresh: bool = False,
    ) -> None:  # fmt: skip
        """Read what `path` has, or make it.

        Raises:
            AutoDDLError: it is of other settings, not such a file, or cannot be written.
        """
        self.path, self._take = path, take
        self.resumed = 0
        if path is None:
            return
        head = {"format": f"autoddl.{kind}.partial", "settings": json.loads(json.dumps(settings))}
        try:
            if fresh or not path.exists() or not path.read_bytes().strip():
                path.write_text(json.dumps(head) + "\n")
            else:
                self._read(path, head)
        except OSError as error:
            raise self._trouble(error) from None

    def add(self, part: Any) -> None:
        """Take a part and keep it.

        Raises:
            AutoDDLError: the file cannot be written.
        """
        self._take(part)
        try:
            if self.path is not None:
                store.append(self.path, part)
        except OSError as error:
            raise self._trouble(error) from None

    def remove(self) -> None:
        """Delete the file: all is measured and written."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _read(self, path: Path, head: Mapping[str, Any]) -> None:
        values, damaged = store.read(path)
        self._check(values.pop(1, None), head)
        for number, value in values.items():
            try:
                self._take(value)
                self.resumed += 1
            except (ValueError, KeyError, TypeError):
                damaged.append(number)
        for number in damaged:
            logger.warning(
                "%s: line %d is truncated or damaged and is left out; its part is measured again",
                path, number,
            )  # fmt: skip

    def _check(self, seen: Any, head: Mapping[str, Any]) -> None:
        if not isinstance(seen, dict) or seen.get("format") != head["format"]:
            raise AutoDDLError(f"{self.path}: not a file of partial results; {ANEW}")
        old, new = seen.get("settings") or {}, head["settings"]
        other = [f"{k} {old.get(k)!r} instead of {v!r}" for k, v in new.items() if old.get(k) != v]
        if other:
            raise AutoDDLError(
                f"{self.path}: partial results of other settings: {', '.join(other)}; "
                f"give the same ones to go on, or {ANEW}"
            )

    def _trouble(self, error: OSError) -> AutoDDLError:
        return AutoDDLError(
            f"partial results {self.path}: {error.strerror}; make room there or give another output "
            "with -o"
        )
