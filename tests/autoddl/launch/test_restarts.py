"""A job is started again when a rank has died, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.launch.job import LaunchArgumentError, LaunchJob
from autoddl.launch.launcher import supervised
from tests.support.rank_scripts import Write

# Each start writes how many ranks it has; the first ones fail as they are told to.
BODY = """
seen = Path(sys.argv[1])
start = int(os.environ["AUTODDL_RESTARTS"])
if os.environ["RANK"] == "0":
    (seen / str(start)).write_text(os.environ["WORLD_SIZE"])
if start < int(sys.argv[2]) and os.environ["RANK"] == "1":
    while not (seen / str(start)).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def starts(folder: Path) -> list[int]:
    return [int((folder / str(n)).read_text()) for n in range(len(list(folder.iterdir())))]


@pytest.mark.parametrize(
    ("failures", "most", "fewest", "ranks", "code"),
    [
        (0, 3, 2, [4], 0),
        (1, 3, 4, [4, 4], 0),
        (2, 3, 2, [4, 2, 2], 0),
        (2, 2, 1, [4, 2, 1], 0),  # where rank 1 is no more
        (9, 2, 3, [4, 3, 3], 137),
        (1, 0, 4, [4], 137),
    ],
)
def test_as_often_as_allowed_and_with_no_fewer_ranks(
    failures: int, most: int, fewest: int, ranks: list[int], code: int,
    write: Write, tmp_path: Path,
) -> None:  # fmt: skip
    folder = tmp_path / "seen"
    folder.mkdir()
    script, told = write("from pathlib import Path\n" + BODY), list[str]()
    job = LaunchJob((script, str(folder), str(failures)), 4, timeout_s=300.0, stream_rank0=False)
    assert supervised(job, most, fewest, told.append).exit_code == code
    assert starts(folder) == ranks
    assert len(told) == len(ranks) - 1
    assert all("SIGKILL" in line and "\n" not in line for line in told)


def test_a_time_limit_ends_the_job(write: Write) -> None:
    job = LaunchJob((write("time.sleep(60)"),), 2, timeout_s=1.0, stream_rank0=False)
    told = list[str]()
    assert supervised(job, 3, 2, told.append).timed_out and told == []


@pytest.mark.parametrize(
    ("fields", "most", "fewest", "words"),
    [
        ({}, -1, 2, "max_restarts: got -1"),
        ({}, 0, 3, "nproc_per_node: got 3:2; allowed are N and FEWEST:MOST"),
        ({}, 0, 0, "nproc_per_node: got 0:2"),
        (
            {},
            0,
            1,
            "nproc_per_node: got 1:2, but ranks are not started again; give --max-restarts N",
        ),
        ({"nnodes": 2, "master_port": 9}, 1, 2, "max_restarts: got 1 with nnodes=2"),
    ],
)
def test_bad_input(
    fields: dict[str, int], most: int, fewest: int, words: str, write: Write
) -> None:
    with pytest.raises(LaunchArgumentError, match=words) as told:
        supervised(LaunchJob((write("pass"),), 2, **fields), most, fewest)
    assert "\n" not in str(told.value)
