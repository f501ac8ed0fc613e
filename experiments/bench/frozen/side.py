"""One checkout of the code, whose worker process plans cases, and what it has found already.

What was found is kept under the checkout's name and a digest of its code: it is found again only
after code changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.bench.frozen import worker
from experiments.bench.frozen.suite import Case
from experiments.lib.frames import RowStore

SECONDS = "seconds"


class Side:
    """One checkout: its worker process, and what was found with its code already."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout = checkout.resolve()
        self.folder = folder.resolve() / f"{self.checkout.name}-{_state(checkout)}"
        self.rows = RowStore(self.folder / "rows.jsonl")
        self._process: subprocess.Popen[str] | None = None

    def done(self, case: Case) -> list[dict[str, Any]]:
        """Return the figures of all runs of a case."""
        return [row["figures"] for row in self.rows.having(case=case.key)]

    def run(self, case: Case) -> dict[str, Any]:
        """Run a case once more, keep its figures and return them."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(dict(case.task)) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            self._process = None
            return {"error": f"the worker ended: {process.wait()}"}
        figures: dict[str, Any] = json.loads(answer)
        if "error" not in figures:
            self.rows.add({"case": case.key, "figures": figures})
        return figures

    def end(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.communicate()

    def figures(self, case: Case) -> dict[str, Any]:
        """Return the first figures of a case, with the least seconds of all its runs."""
        rows = self.done(case)
        if SECONDS not in rows[0]:
            return rows[0]
        return {**rows[0], SECONDS: min(row[SECONDS] for row in rows)}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, worker.__file__, str(self.folder)],
                env={**os.environ, "PYTHONPATH": str(self.checkout)},
                cwd=self.checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        return self._process


def _state(checkout: Path) -> str:
    """Return a digest of the code of a checkout that finds plans: as committed, and what is changed."""
    code = ("autoddl", "sbp", "perfmodel", "search", "experiments/models")
    text = ""
    for arguments in (("ls-tree", "HEAD"), ("diff", "HEAD", "--")):
        command = ["git", "-C", str(checkout), *arguments, *code]
        text += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return hashlib.sha256(text.encode()).hexdigest()[:12]
