"""Files that were changed since they were written are refused in one line, whatever was changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autoddl import json_files
from autoddl.checkpoint.sharded_files import read_index
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.plan import codec
from autoddl.sbp.program import Program

HERE = Path(__file__).parent
LOAD: dict[str, tuple[Path, Callable[[Path], Any]]] = {
    "plan": (HERE / "plan" / "golden_plan.json", partial(codec.load, engine_of=engines.model)),
    "program": (HERE.parent / "sbp" / "program" / "program_v1.json", Program.load),
    "profile": (HERE.parent / "perfmodel" / "golden_profile.json", profiles.load),
    "checkpoint": (HERE / "checkpoint" / "index.json", lambda path: read_index(path.parent)),
}
MUTATIONS = 200  # of bytes, and as many of values, for each seed


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change, drop, double or swap some bytes."""
    changed = bytearray(data)
    at = rng.randrange(len(data))
    length = rng.choice((1, 1, 1, 2, 8, 100))
    kind = rng.randrange(4)
    if kind == 0:
        changed[at] = rng.randrange(256)
    elif kind == 1:
        del changed[at : at + length]
    elif kind == 2:
        changed[at:at] = changed[at : at + length]
    else:
        other = rng.randrange(len(data))
        changed[at], changed[other] = changed[other], changed[at]
    return bytes(changed)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container inside a value with each of its keys."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from places(item)


def of_values(data: bytes, rng: random.Random) -> bytes:
    """Change, drop or double a value, or rename a field."""
    changed = json.loads(data)
    inside, key = rng.choice(list(places(changed)))
    old = inside[key]
    kind = rng.randrange(2)
    if kind == 0:
        del inside[key]
    elif kind == 1 and isinstance(inside, dict):
        inside[rng.choice(("", key + "x", key.upper() + "_"))] = inside.pop(key)
    elif kind == 2 and isinstance(inside, list):
        inside.insert(key, copy.deepcopy(old))
    elif isinstance(old, bool):
        inside[key] = not old
    elif isinstance(old, int | float):
        inside[key] = rng.choice((old + 1, -old - 1, old * 2 + 1, 1 << 62, 1e300, str(old), None))
    elif isinstance(old, str):
        inside[key] = rng.choice((old + " ", old[1:] + "0", "", "B", 7, None))
    else:
        inside[key] = rng.choice((None, 0, {"a": 1}, [1]))
    return json.dumps(changed).encode()


@pytest.mark.parametrize("mutate", [of_bytes, of_values])
@pytest.mark.parametrize("kind", LOAD)
@pytest.mark.parametrize("seed", range(2))
def test_no_change_of_meaning_is_accepted(
    seed: int, kind: str, mutate: Callable[[bytes, random.Random], bytes], tmp_path: Path
) -> None:
    golden, load = LOAD[kind]
    data, path, rng = golden.read_bytes(), tmp_path / "file.json", random.Random(f"{kind} {seed}")
    whole, refused = load(golden), 0
    for _ in range(MUTATIONS):
        path.write_bytes(mutate(data, rng))
        try:
            found = load(path)
        except AutoDDLError as error:
            text, refused = str(error), refused + 1
            assert "\n" not in text and len(text) <= 400 + 2 * len(str(path))
        else:
            assert found == whole  # a blank, or an order of fields
    assert refused > 0.5 * MUTATIONS


@pytest.mark.parametrize("kind", ["plan", "program", "profile"])
def test_what_is_written_is_read_and_what_is_unsigned_is_not(kind: str, tmp_path: Path) -> None:
    golden, load = LOAD[kind]
    path = tmp_path / "file.json"
    save = partial(codec.save, load(golden)) if kind == "plan" else load(golden).save
    save(path)
    assert load(path) == load(golden)
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps(data, indent=7, sort_keys=True))  # only how it looks
    assert load(path) == load(golden)
    del data["digest"]
    path.write_text(json.dumps(data))
    with pytest.raises(AutoDDLError, match=f"{kind} file .*: has no digest; .* autoddl sign"):
        load(path)


def test_the_digest_is_that_of_the_other_fields() -> None:
    """By hand: SHA-256 of {"a":1.5,"b":[true,null]}."""
    import hashlib

    expected = hashlib.sha256(b'{"a":1.5,"b":[true,null]}').hexdigest()
    assert json_files.digest({"b": [True, None], "digest": "x", "a": 1.5}) == expected
