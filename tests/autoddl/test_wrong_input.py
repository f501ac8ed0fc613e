"""Wrong options of `optimize` get one line each, soon, whatever they are."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import pytest

import autoddl
from autoddl.errors import AutoDDLError, InfeasibleError
from tests.support.clusters import cluster
from tests.support.programs import mlp

LONG = "x" * 5000
VALUES: dict[str, Any] = {
    "None": None, "-1": -1, "0": 0, "2.5": 2.5, "nothing": "", "a word": "x", "a long word": LONG,
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "1e30": 1e30, "2**70": 2**70,
    "10**400": 10**400, "10**5000": 10**5000, "a list": [], "a dict": {}, "a tuple": (),
    "an object": object(), "True": True, "bytes": b"x", "2x0": "2x0", "2x": "2x", "-2": "-2",
    "ten axes": "x".join("2" * 10), "300 axes": "x".join("2" * 300), "escapes": "\x1b[31mred",
    "two lines": "a\nb", "NUL": "a\0b", "a huge count": (2**40,), "a part": (2, 2.5), "text": ["a"],
    "digits": "1" * 5000, "many digits": "9" * 400 + "GB", "a complex": 3 + 4j, "a function": len,
    "keys": {1: 2}, "a pattern": {"*": "S99999999999999999999"}, "a long state": {"*": LONG},
    "no level": "[x 2][y 2]", "half a word": "\ud800",
}  # fmt: skip
OPTIONS = (
    "mesh", "cluster", "profile", "memory", "search", "objective", "engine", "budget", "stop_gap",
    "seed", "pin", "pipeline", "micro_batches", "compute_stream", "duplex", "trials",
    "strict", "allow_local_batchnorm", "dropout", "recompute", "progress",
)  # fmt: skip
LIMIT_S = 5.0


@pytest.mark.parametrize("option", OPTIONS)
def test_one_line_or_a_plan(option: str) -> None:
    program, refused = mlp(8, (16, 32, 8)), 0
    for name, value in VALUES.items():
        if option == "progress" and callable(value):
            continue  # what it raises comes out as it is
        options = {"mesh": "2", "profile": cluster(), "budget": 0.3, option: value}
        if option == "cluster":
            del options["mesh"]
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                autoddl.optimize(program, **options)
            except AutoDDLError as error:
                said, refused = str(error), refused + 1
                most = 1000 if isinstance(error, InfeasibleError) else 400  # it names what is large
                assert said.isprintable() and len(said) <= most, (name, said)
        assert time.process_time() - begin < LIMIT_S, name
    assert refused > len(VALUES) / 2


def test_a_misspelt_option() -> None:
    with pytest.raises(AutoDDLError, match="got 'memry', which is no option"):
        autoddl.optimize(mlp(8, (16, 32, 8)), mesh="2", memry="1GiB")
