"""The file of finished cases that lets an interrupted measurement go on.

JSON lines: the first names the settings, each further one is a finished case or the device. A line
is written at once when its case is done.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoddl.engine.cases import Case, Row, row_from_json
from autoddl.errors import AutoDDLError

logger = logging.getLogger(__name__)

_FORMAT = "autoddl.fit_network.partial"
_ANEW = "--fresh starts anew"


class Partial:
    """Finished cases of a measurement, kept in `path` (or, without one, in memory only)."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, fresh: bool) -> None:
        """Read what `path` has, or make it.

        Raises:
            AutoDDLError: it is of other settings, not such a file, or cannot be written.
        """
        self.path = path
        self.rows: dict[Case, Row] = {}
        self.device: dict[str, Any] | None = None
        if path is None:
            return
        head = {"format": _FORMAT, "settings": json.loads(json.dumps(settings))}
        try:
            old = "" if fresh or not path.exists() else path.read_text()
            whole = self._load(old, head) if old.strip() else json.dumps(head) + "\n"
            if whole != old:
                path.write_text(whole)
        except (OSError, UnicodeDecodeError) as error:
            raise self._trouble(error) from None

    @property
    def resumed(self) -> bool:
        """Tell whether anything has been measured."""
        return bool(self.rows) or self.device is not None

    def add(self, line: str) -> None:
        """Take one line of a rank program's results, and keep it.

        Raises:
            AutoDDLError: the file cannot be written.
        """
        self._take(json.loads(line))
        if self.path is None:
            return
        try:
            with self.path.open("a") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._trouble(error) from None

    def remove(self) -> None:
        """Delete the file: all is measured and written."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _load(self, text: str, head: Mapping[str, Any]) -> str:
        """Take all that `text` has, and return it without damaged lines."""
        first, *lines = text.splitlines()
        self._check_head(first, head)
        good = [first]
        for number, line in enumerate(lines, start=2):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                logger.warning(
                    "%s: line %d is truncated or damaged and is left out; its case is measured again",
                    self.path,
                    number,
                )
                continue
            good.append(line)
        return "\n".join(good) + "\n"

    def _check_head(self, first: str, head: Mapping[str, Any]) -> None:
        try:
            seen = json.loads(first)
        except ValueError:
            seen = None
        if not isinstance(seen, dict) or seen.get("format") != _FORMAT:
            raise AutoDDLError(f"{self.path}: not a file of partial results; {_ANEW}")
        old, new = seen.get("settings") or {}, head["settings"]
        other = [key for key in new if old.get(key) != new[key]]
        if other:
            differences = ", ".join(
                f"{key} {old.get(key)!r} instead of {new[key]!r}" for key in other
            )
            raise AutoDDLError(
                f"{self.path}: partial results of other settings: {differences}; "
                f"give the same ones to go on, or {_ANEW}"
            )

    def _take(self, data: Any) -> None:
        if "device" in data:
            self.device = dict(data["device"])
        else:
            row = row_from_json(data["row"])
            self.rows[row.case] = row

    def _trouble(self, error: Exception) -> AutoDDLError:
        reason = error.strerror if isinstance(error, OSError) else "not a file of partial results"
        return AutoDDLError(
            f"partial results {self.path}: {reason}; make room there or give another output with -o"
        )
