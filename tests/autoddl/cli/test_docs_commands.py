"""The commands of README and docs run as they stand, on toys; those that can't are listed with why."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

import autoddl
from autoddl.cli.app import main
from autoddl.perfmodel import profile as profiles
from tests.support.doc_pages import ROOT, WRITTEN, commands
from tests.support.graph_scripts import TRAIN
from tests.support.programs import transformer
from tests.support.rank_scripts import Write

EACH = sorted({command for page in WRITTEN.values() for command in commands(page)})
MINUTES = "takes minutes or hours; what it does is tested on toy sizes in "
NOT_RUN = {
    "make ": "targets that the CI runs, or that take longer than it has",
    "python -m oneflow.distributed.launch": "OneFlow's own",
    "python -m autoddl fit-network": MINUTES + "tests/autoddl/cli/measure/test_fit_network_command.py",
    "python -m autoddl fit-device": MINUTES + "tests/autoddl/cli/measure/test_fit_device_command.py",
    "python -m autoddl try": MINUTES + "tests/autoddl/trials/test_trial_ranks.py",
    "python -m autoddl run --nproc-per-node 4 train_parallel.py":
        MINUTES + "tests/autoddl/codegen, which runs scripts of many plans",
    "python -m autoddl merge checkpoint": "its help has the same: tests/autoddl/cli/test_examples.py",
    "python -m autoddl fit gpt.json --profile h100 --mesh": "many searches; its help has a shorter one",
    "python -m autoddl whatif gpt.json --profile h100 --mesh 4x8": "the same",
    "python -m autoddl plan program.json": "is refused, as told there; tests/autoddl/remedies has such",
    "python -m autoddl capture examples/gpt.py": "tests/test_readme.py runs it, with what follows",
    "python examples/": "tests/test_examples.py",
    "python -m autoddl run --nproc-per-node 2 examples/": "the same",
    "python -m autoddl run --nproc-per-node 4 examples/": "the same",
    "python -m experiments.amp": MINUTES + "tests/experiments/amp",
    "python -m experiments.bench.": MINUTES + "tests/experiments/bench",
    "python -m experiments.check_rules": MINUTES + "tests/experiments/proofs",
    "python -m experiments.fidelity": MINUTES + "tests/experiments/fidelity",
    "python -m experiments.figures": MINUTES + "tests/experiments/figures",
    "python -m experiments.hap": MINUTES + "tests/experiments/hap",
    "python -m experiments.rhino": MINUTES + "tests/experiments/rhino",
    "python -m experiments.hidup": MINUTES + "tests/experiments/hidup",
    "python -m experiments.proofs.": MINUTES + "tests/autoddl/remedies/test_doctor.py",
    "python -m experiments.published": MINUTES + "tests/experiments/published",
    "python -m experiments.rhino.free_stages_study": MINUTES + "tests/experiments/rhino",
    "python -m experiments.testbed": "root makes network namespaces; tests/experiments/testbed",
}  # fmt: skip
"""What commands begin with that no test runs, with the reason."""
ON_ENGINE = ("capture", "codegen")
RUN = [each for each in EACH if not each.startswith(tuple(NOT_RUN))]


def test_what_is_not_run_is_there_and_tested_elsewhere() -> None:
    for start, why in NOT_RUN.items():
        assert any(each.startswith(start) for each in EACH), start
        for path in re.findall(r"tests/[\w./]+\b", why):
            assert (ROOT / path).exists(), path
    assert len(RUN) > 10


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with toys of the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("docs")
    transformer(layers=2, batch=32).save(folder / "gpt.json")
    profiles.load("cpu-loopback").save(folder / "network.json")
    plan = autoddl.optimize(folder / "gpt.json", mesh="2x2", profile="cpu-loopback", budget=0.5)
    plan.save(folder / "plan.json")
    plan.save(folder / "gpt_plan.json")
    other = autoddl.optimize(folder / "gpt.json", mesh="2x2", search="Megatron")
    other.save(folder / "megatron.json")
    staged = autoddl.optimize(
        folder / "gpt.json", mesh="2", pipeline=2, micro_batches=4, engine="script", budget=0.5
    )
    staged.save(folder / "staged.json")
    (folder / "schedule.json").write_text(json.dumps(staged.schedule()))
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(each, marks=[pytest.mark.oneflow] if each.split()[3] in ON_ENGINE else [])
        for each in RUN if each.split()[3] != "run"
    ],
)  # fmt: skip
def test_the_command_runs(
    line: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "autoddl"]
    written = [after for option, after in pairwise(words) if option == "-o"]
    for name in written:  # a page may write a file that it reads elsewhere
        Path(name).unlink(missing_ok=True)
    if "codegen" in words:
        assert main(["capture", "train.py:build", "-o", "own.json"]) == 0
        autoddl.optimize("own.json", mesh="2", budget=0.5).save("plan.json")
    elif "own.json" in words and "own.json" not in written:
        Path("gpt.json").rename("own.json")
    assert main(words[3:]) == 0, capsys.readouterr().err
    assert all(Path(name).exists() for name in written)


@pytest.mark.parametrize("line", [each for each in RUN if each.split()[3] == "run"])
def test_the_command_starts_ranks(
    line: str, write: Write, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = Path(write("print(f'rank {os.environ[\"RANK\"]}')", "train.py", "import os\n"))
    monkeypatch.chdir(script.parent)
    words = shlex.split(line)[3:]
    if words[-1] == "…":
        words[-1:] = ["--nproc-per-node", "2", "train.py"]
    assert main(words) == 0
    assert "rank 0\n" in capfd.readouterr().out
