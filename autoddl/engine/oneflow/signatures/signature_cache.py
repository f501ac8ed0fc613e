"""Keep the engine's answers on disk: one JSON file for every question.

Nothing here raises: a cache that can't be read or written costs time, not a plan.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return $XDG_CACHE_HOME/autoddl, or ~/.cache/autoddl."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))
    return home / "autoddl"


class SignatureCache:
    """Answers by question (plain JSON values) and engine version.

    Several processes may use one folder: files are replaced whole.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or default_folder()) / "signatures"
        self._silent = False

    def get(self, question: Any) -> Any:
        """Return the answer that was kept, or None."""
        path, key = self._entry(question)
        try:
            data = json.loads(path.read_text())
            return data["answer"] if data["question"] == key else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._say(f"can't read {path}: {error!r}; the engine is asked again")
            return None

    def put(self, question: Any, answer: Any) -> None:
        """Keep an answer, if the folder can be written."""
        path, key = self._entry(question)
        name = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                name = file.name
                json.dump({"question": key, "answer": answer}, file)
            os.replace(name, path)
        except OSError as error:
            self._say(f"can't write {path}: {error!r}; answers of the engine are not kept")
            with suppress(OSError):
                os.unlink(name)

    def _entry(self, question: Any) -> tuple[Path, Any]:
        """Return the file of a question and the form in which it is kept there."""
        text = json.dumps({"engine": _engine_version(), **question}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        return self._folder / f"{digest}.json", json.loads(text)

    def _say(self, text: str) -> None:
        """Log once: a broken folder breaks every file in it."""
        if not self._silent:
            logger.warning("signature cache: %s", text)
            self._silent = True


def _engine_version() -> str:
    try:
        return version("oneflow")
    except PackageNotFoundError:
        return "unknown"
