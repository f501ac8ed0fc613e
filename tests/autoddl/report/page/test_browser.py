"""Pages in a real browser: no error on its console, every section, nothing wider than a phone.

`make browser` installs Debian's chromium and runs this; it is skipped where there is none, and in CI.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path

import pytest

from autoddl.api import Plan, load, optimize
from autoddl.report.page.page_html import page
from tests.autoddl.report.page.test_page_html import OTHERS
from tests.autoddl.report.test_hostile_names import hostile
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster
from tests.support.pages import SECTIONS, Page
from tests.support.programs import mlp, transformer

CHROMIUM = Path("/usr/bin/chromium")
MISSING = (
    "browsers are not for CI"
    if os.environ.get("CI")
    else ""
    if CHROMIUM.exists()
    else "there is no /usr/bin/chromium; `make browser` installs it"
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-background-networking", "--disable-gpu", "--hide-scrollbars",
    "--enable-logging=stderr",
)  # fmt: skip
WIDTHS = (1280, 400)
# Pages in frames, since windows have a least width: what is wider than its frame, without what scrolls
# inside a box of its own.
FRAME = '<iframe style="width:{width}px;height:900px;border:0" srcdoc="{text}"></iframe>'
PROBE = """<script>
onload = () => { document.body.dataset.probe = [...document.querySelectorAll("iframe")].map(f => {
  const page = f.contentDocument, root = page.documentElement, inside = root.clientWidth;
  const out = [...page.querySelectorAll("main *")].filter(e => !e.closest(".scroll table, svg")
    && e.getBoundingClientRect().right > inside + 1).map(e => e.tagName);
  return `${inside} ${root.scrollWidth} ${out.slice(0, 5)}`.trim();
}).join(";"); };
</script>"""


@cache
def gpt() -> Plan:
    """Return a plan of a GPT of 24 layers on 4x8 devices, as it is saved."""
    program = transformer(layers=24, batch=64, length=64, width=256, heads=8, vocabulary=1000)
    return optimize(replace(program, device="cuda"), mesh="4x8", profile="h100", budget=LITTLE)


PLANS = {**OTHERS, "gpt": gpt, "tiny": lambda: optimize(mlp(), mesh="2x2"), "hostile": hostile}


def opened(file: Path, width: int, *words: str) -> str:
    """Return what the browser writes to stdout for a page; what its console gets is an error."""
    done = subprocess.run(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={file.parent / 'profile'}", f"--window-size={width},1000",
         *words, file.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert not re.findall(r".*CONSOLE.*", done.stderr)
    return done.stdout


def written(name: str, file: Path) -> str:
    """Write the page of a plan, and return it."""
    text = page(PLANS[name](), cluster() if name == "hostile" else None)
    file.write_text(text)
    return text


@pytest.mark.parametrize("name", PLANS)
def test_a_page_in_a_browser(name: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    text = written(name, file)
    found = Page(opened(file, 1280, "--dump-dom"))
    assert [d["id"] for d in found.attributes("section")] == [*SECTIONS]
    assert all(found.text(section) for section in SECTIONS)
    frames = [FRAME.format(width=width, text=escape(text)) for width in WIDTHS]
    file.write_text(f"<!DOCTYPE html><body>{''.join(frames)}{PROBE}</body>")
    (probe,) = re.findall(r'data-probe="([^"]*)"', opened(file, 1400, "--dump-dom"))
    assert probe == ";".join(f"{width} {width}" for width in WIDTHS)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_picture_of_a_page_has_something_on_it(width: int, tmp_path: Path) -> None:
    file, shot = tmp_path / "plan.html", tmp_path / "shot.png"
    written("gpt", file)
    opened(file, width, f"--screenshot={shot}")
    assert shot.stat().st_size > 10_000


def test_scripts_do_not_run(tmp_path: Path) -> None:
    """Were one to come in, the page's own policy would stop it, and the console would say so."""
    file = tmp_path / "plan.html"
    file.write_text(page(PLANS["tiny"]()).replace("</body>", f"{PROBE}</body>"))
    with pytest.raises(AssertionError, match="Executing inline script violates"):
        opened(file, 400, "--dump-dom")


def test_the_page_of_a_large_model_is_small_and_soon_written(tmp_path: Path) -> None:
    gpt().save(tmp_path / "plan.json")
    load(tmp_path / "plan.json").report(tmp_path / "plan.html")
    assert (tmp_path / "plan.html").stat().st_size < 2_000_000
