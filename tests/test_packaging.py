"""The wheel holds every module once, and its packages import without the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAPPED = ("sbp", "perfmodel", "search")
PACKAGES = ("autoddl", *(f"autoddl.{name}" for name in MAPPED), "autoddl.sbp.rules")


def run(*command: object, cwd: Path) -> str:
    """Run `command` in `cwd` and return what it prints; show its errors where it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def sources(folder: Path) -> set[str]:
    """Return the files of `folder` that belong into a wheel, relative to it, links not followed."""
    files = set()
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            relative = (Path(parent) / name).relative_to(folder).as_posix()
            if name.endswith(".py") or relative == "py.typed":
                files.add(relative)
    return files


def expected_files() -> list[str]:
    """Return the names that the wheel should have for the code of this checkout."""
    files = [f"autoddl/{name}" for name in sources(ROOT / "autoddl")]
    for folder in MAPPED:
        files += [f"autoddl/{folder}/{name}" for name in sources(ROOT / folder)]
    profiles = (ROOT / "perfmodel" / "profiles").glob("*.json")
    files += [f"autoddl/perfmodel/profiles/{profile.name}" for profile in profiles]
    templates = (ROOT / "autoddl/report/page/templates").iterdir()
    files += [f"autoddl/report/page/templates/{template.name}" for template in templates]
    return sorted([*files, "autoddl/engine/oneflow/model/refused.json"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel, without the network, from a copy: building leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    for name in ("autoddl", *MAPPED):
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", folder, copy, cwd=folder)
    [built] = folder.glob("*.whl")
    return built


def test_links_lead_to_the_mapped_folders() -> None:
    for name in MAPPED:
        assert os.readlink(ROOT / "autoddl" / name) == f"../{name}"


def test_wheel_holds_every_module_exactly_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    doubled = [name for name, count in Counter(files).items() if count > 1]
    assert not doubled
    assert sorted(files) == expected_files()


@pytest.mark.parametrize("form", ["zip", "unpacked"])
def test_packages_import_from_the_wheel(wheel: Path, tmp_path: Path, form: str) -> None:
    place = wheel
    if form == "unpacked":
        place = tmp_path / "site"
        zipfile.ZipFile(wheel).extractall(place)
    code = (
        "import importlib, json, sys\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        f"modules = [importlib.import_module(name) for name in {PACKAGES!r}]\n"
        "sys.modules['autoddl'].optimize\n"
        "found = [name for name in ('oneflow', 'scipy.optimize') if name in sys.modules]\n"
        "assert not found, f'importing the planner imported {found}'\n"
        "print(json.dumps([module.__file__ for module in modules]))\n"
    )
    files = json.loads(run(sys.executable, "-I", "-c", code, cwd=tmp_path))
    assert [Path(file).is_relative_to(place) for file in files] == [True] * len(PACKAGES)


def test_packages_import_from_the_checkout(tmp_path: Path) -> None:
    """The editable install is seen from any folder and leads to this checkout."""
    code = (
        "import importlib, json, os\n"
        f"modules = [importlib.import_module(name) for name in {PACKAGES!r}]\n"
        "print(json.dumps([os.path.realpath(module.__file__) for module in modules]))\n"
    )
    files = json.loads(run(sys.executable, "-c", code, cwd=tmp_path))
    assert [Path(file).is_relative_to(ROOT) for file in files] == [True] * len(PACKAGES)
