"""README and pages of docs/: their blocks of code, and the commands that they name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GENERATED = ("op_rules.md",)
PAGES = {str(p.relative_to(ROOT)): p for p in (README, *sorted((ROOT / "docs").glob("*.md")))}
WRITTEN = {name: page for name, page in PAGES.items() if page.name not in GENERATED}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the blocks of code of a page, each with its language, "" for none."""
    return _BLOCK.findall(page.read_text())


def fenced(page: Path, language: str) -> list[str]:
    """Return the blocks of code in a language, "" for those that name none."""
    return [text for named, text in blocks(page) if named == language]


def lines(block: str) -> list[str]:
    """Return the commands of a block without what is said of them behind "#"."""
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


def commands(page: Path) -> list[str]:
    """Return calls of modules, examples and make, in blocks of code and in quoted text."""
    told = [line for block in fenced(page, "") for line in lines(block)]
    outside = _BLOCK.sub("", page.read_text())
    told += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", outside)]
    return [line for line in told if re.match(r"(python -m|python examples/|make) ?\S", line)]
