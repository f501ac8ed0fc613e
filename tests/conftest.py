"""Skip what this machine cannot run, and keep OneFlow out of collection."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from autoddl.launch.processes import RankProcesses
from tests.support.budgets import count_cpu_seconds
from tests.support.on_ranks import RankGroups

# The same examples in every run, and no limits of time: this has to pass on busy machines.
settings.register_profile("all", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("some", settings.get_profile("all"), max_examples=12)
count_cpu_seconds()

# What a shell runs in the background ignores it, and so would all that tests start to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)

HAS_ONEFLOW = find_spec("oneflow") is not None
NEED_ONEFLOW = ("oneflow", "testbed")
ALONE = ("ranks", "testbed")  # what needs the cores for itself


class _NoOneFlow:
    """Refuse to import OneFlow: collecting a test must not load the engine."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "oneflow":
            raise RuntimeError(
                "a test module imports oneflow, perhaps through autoddl.engine, while it is "
                "collected; import it inside the tests and mark them @pytest.mark.oneflow"
            )


_guard = _NoOneFlow()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="of a parametrised test run N cases at most, from the first to the last",
    )
    parser.addoption(
        "--tests",
        type=int,
        metavar="N",
        help="of a test module run N tests at most, from the first to the last (cases are counted each)",
    )
    parser.addoption(
        "--part",
        choices=("quick", "rest"),
        help="run what `make test` runs (on ranks what is marked smoke, else two cases of each test and "
        "few examples), or what it leaves to `make test-rest`",
    )
    parser.addoption(
        "--all-scripts",
        action="store_true",
        help="run every kind of training script under every plan, not each under one (a minute more)",
    )


def pytest_configure(config: pytest.Config) -> None:
    few = config.getoption("--part") == "quick" or config.getoption("--cases") is not None
    settings.load_profile("some" if few else "all")


def pytest_collection(session: pytest.Session) -> None:
    sys.meta_path.insert(0, _guard)


def pytest_collection_finish(session: pytest.Session) -> None:
    if _guard in sys.meta_path:
        sys.meta_path.remove(_guard)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    for option, end in (("--cases", "["), ("--tests", "::")):
        if config.getoption(option) is not None:
            able = [item for item in items if HAS_ONEFLOW or not _needs_oneflow(item)]
            _keep(config, items, _some(able, config.getoption(option), end))
    if part is not None:
        quick = _quick(items)
        _keep(config, items, quick if part == "quick" else _rest(items, quick))
    if HAS_ONEFLOW:
        return
    skip = pytest.mark.skip(reason="OneFlow is not installed; `make test` runs this with it")
    for item in items:
        if _needs_oneflow(item):
            item.add_marker(skip)


def _needs_oneflow(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, NEED_ONEFLOW))


def _keep(config: pytest.Config, items: list[pytest.Item], kept: set[str]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def _quick(items: list[pytest.Item]) -> set[str]:
    """Return the names of what a developer runs: a test of every kind, but of testbeds."""
    alone, others = [], []
    for item in items:
        (alone if any(map(item.get_closest_marker, ALONE)) else others).append(item)
    smoke = {item.nodeid for item in alone if item.get_closest_marker("smoke")}
    return smoke | _some(others, 2, "[")


def _rest(items: list[pytest.Item], quick: set[str]) -> set[str]:
    """Return the names of what that leaves, with what it runs with few examples only."""
    drawn = {item.nodeid for item in items if is_hypothesis_test(getattr(item, "obj", None))}
    return {item.nodeid for item in items} - quick | drawn


def _some(items: list[pytest.Item], most: int, end: str) -> set[str]:
    """Return at most so many of the names that are alike up to `end`, as far apart as can be."""
    groups: dict[str, list[str]] = {}
    for item in items:
        groups.setdefault(item.nodeid.partition(end)[0], []).append(item.nodeid)
    kept: set[str] = set()
    for names in groups.values():
        step = max(1.0, (len(names) - 1) / max(1, most - 1))
        places = {round(number * step) for number in range(most)}
        kept.update(names[place] for place in places if place < len(names))
    return kept


@pytest.fixture(autouse=True)
def _ranks_only_where_marked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail a test that starts ranks of OneFlow without the marker by which it runs alone.

    The fixture `write` gives scripts that need only the standard library.
    """
    if any(map(request.node.get_closest_marker, ALONE)) or "write" in request.fixturenames:
        return

    def refuse(*command: Any, **options: Any) -> None:
        pytest.fail(f"starts ranks ({command}): mark it @pytest.mark.ranks", pytrace=False)

    monkeypatch.setattr(RankProcesses, "start", refuse)
    monkeypatch.setattr(RankGroups, "__call__", refuse)


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroups]:
    """Run scripts on ranks, which those that ask for as many share."""
    groups = RankGroups(tmp_path_factory.mktemp("ranks"))
    yield groups
    groups.end()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keep the user's cache out of tests, and tests out of the user's cache.

    Matplotlib's list of fonts, which takes seconds to make, stays from one run to the next where
    pytest keeps anything.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        kept = getattr(request.config, "cache", None)  # not with `-p no:cacheprovider`
        if kept is not None:
            patch.setenv("MPLCONFIGDIR", str(kept.mkdir("matplotlib")))
        yield


def pytest_report_header() -> str:
    if HAS_ONEFLOW:
        return "oneflow: installed"
    return "oneflow: not installed, so tests marked oneflow or testbed are skipped"
