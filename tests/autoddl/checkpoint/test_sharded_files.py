"""Shards on disk: cut in one way and read in another, whole or refused, whatever stops the writer."""

from __future__ import annotations

import errno
import itertools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.checkpoint import sharded_files
from autoddl.checkpoint.sharded_files import Array, Facts, Index, Shard
from autoddl.errors import AutoDDLError
from autoddl.sbp.shards import shard_slices
from autoddl.sbp.state import B, NdSbp, S

STATES = [NdSbp(pair) for pair in itertools.product((B, S(0), S(1)), repeat=2)]


def arrays(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(8, 12)).astype(np.float32),
        "half": rng.normal(size=(4, 4, 3)).astype(np.float16),
        "count": np.array([seed], dtype=np.int64),
        "scalar": np.array(1.5 + seed),
        "empty": np.zeros((0, 4), dtype=np.float32),
    }


def save(folder: Path, values: dict[str, Array], stem: str, *, publish: bool = True) -> None:
    """Write arrays in halves of their first dim, where it is even: two files."""
    written = []
    for rank in range(2):
        shards = {}
        for name, value in values.items():
            parts = 2 if value.ndim > 1 and value.shape[0] else 1
            if rank < parts:
                rows = [slice(0, n) for n in value.shape]
                if parts == 2:
                    rows[0] = slice(rank * len(value) // 2, (rank + 1) * len(value) // 2)
                shards[name] = Shard(value.shape, tuple(rows), value[tuple(rows)])
        written.append(sharded_files.write_shards(folder, f"{stem}.rank{rank}", shards))
    if publish:
        sharded_files.publish(folder, Index(sharded_files.joined(written), Facts(steps=3)))


def loaded(folder: Path) -> dict[str, Array]:
    index = sharded_files.read_index(folder)
    return {name: sharded_files.read(folder, index, name) for name in index.tensors}


def same(found: dict[str, Array], values: dict[str, Array]) -> bool:
    return found.keys() == values.keys() and all(
        np.array_equal(found[n], values[n]) and found[n].dtype == values[n].dtype for n in values
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    save(tmp_path, arrays(), "1-a")
    assert same(loaded(tmp_path), arrays())
    assert sharded_files.read_index(tmp_path).facts == Facts(steps=3)


@given(st.sampled_from(STATES), st.sampled_from(STATES), st.sampled_from([(2, 2), (4, 2), (1, 4)]))
def test_any_cut_is_read_in_any_other(before: NdSbp, after: NdSbp, mesh: tuple[int, int]) -> None:
    folder, value = Path(tempfile.mkdtemp()), np.arange(16.0 * 24).reshape(16, 24)
    every = list(np.ndindex(*mesh))
    written = []
    for rank, at in enumerate(every):
        if all(place == 0 or axis.is_split for place, axis in zip(at, before, strict=True)):
            slices = shard_slices(value.shape, before, mesh, at)
            shards = {"w": Shard(value.shape, slices, value[slices])}
            written.append(sharded_files.write_shards(folder, f"1.rank{rank}", shards))
    sharded_files.publish(folder, Index(sharded_files.joined(written)))
    index = sharded_files.read_index(folder)
    for at in every:
        slices = shard_slices(value.shape, after, mesh, at)
        np.testing.assert_array_equal(sharded_files.read(folder, index, "w", slices), value[slices])
    shutil.rmtree(folder)


def test_until_the_index_is_there_the_old_checkpoint_is(tmp_path: Path) -> None:
    save(tmp_path, arrays(1), "1-a")
    save(tmp_path, arrays(2), "2-b", publish=False)  # killed before the end
    assert same(loaded(tmp_path), arrays(1))
    save(tmp_path, arrays(3), "3-c")
    assert same(loaded(tmp_path), arrays(3))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"index.json", "3-c.rank0", "3-c.rank1"}  # all others are removed


def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, arrays(1), "1-a")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AutoDDLError, match=r"2-b.rank0: No space left on device; make room"):
        save(tmp_path, arrays(2), "2-b")
    assert same(loaded(tmp_path), arrays(1))
    assert {path.name for path in tmp_path.iterdir()} == {"index.json", "1-a.rank0", "1-a.rank1"}


@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path) -> None:
    save(tmp_path, arrays(), "1-a")
    path = tmp_path / "1-a.rank1"
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        data[3] ^= 1
        path.write_bytes(data[:100] if damage == "truncated" else data)
    with pytest.raises(
        AutoDDLError, match=r"checkpoint file .*1-a.rank1: .*; give the folder"
    ) as told:
        loaded(tmp_path)
    assert "\n" not in str(told.value)


def test_parts_that_do_not_make_up_an_array_are_refused(tmp_path: Path) -> None:
    shard = Shard((4, 2), (slice(0, 2), slice(0, 2)), np.zeros((2, 2)))
    entries = sharded_files.write_shards(tmp_path, "1.rank0", {"w": shard})
    with pytest.raises(AutoDDLError, match="'w' lacks parts"):
        sharded_files.publish(tmp_path, Index(entries))
    assert not (tmp_path / "index.json").exists()


@pytest.mark.parametrize("folder", ["missing", ""])
def test_a_folder_without_a_checkpoint(folder: str, tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match=r"checkpoint .*index.json: can't be read"):
        sharded_files.read_index(tmp_path / folder)
