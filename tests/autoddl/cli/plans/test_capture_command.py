"""`python -m autoddl capture`: the program of a script, or one line that says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import autoddl
from autoddl.cli import app
from autoddl.engine.oneflow.adapter import OneFlow
from autoddl.sbp.program import Program
from tests.support.graph_scripts import BUILD, GRAPH, MAIN, TRAIN

pytestmark = pytest.mark.oneflow


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as `python -m` has it
    Path("train.py").write_text(TRAIN)


def captured(capsys: pytest.CaptureFixture[str], *words: str) -> Program:
    """Return the program that a command writes, which says so."""
    assert app.main(["capture", *words, "-o", "found.json", "--force"]) == 0
    out, err = capsys.readouterr()
    program = Program.load("found.json")
    assert err == ""
    assert out.startswith(f"wrote found.json: {len(program.ops)} ops, ") and out.count("\n") == 1
    return program


def refused(capsys: pytest.CaptureFixture[str], script: str) -> str:
    """Return the one line that refuses a script, of which no file is left."""
    assert app.main(["capture", script, "-o", "found.json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err[:-1].isprintable()
    assert not Path("found.json").exists()
    return err.removeprefix("autoddl capture: ").rstrip()


def test_a_function_and_a_script_give_what_capture_gives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import oneflow as flow

    defined = {"__name__": "here"}
    exec(TRAIN, defined)
    make: type = defined["Train"]  # type: ignore[assignment]
    x, y = flow.randn(32, 64), flow.randn(32, 64)
    by_place, by_word = autoddl.capture(make(), x, y), autoddl.capture(make(), x, y=y)
    for script in ("train.py:build", "./train.py:build", "train:build"):
        assert captured(capsys, script) == by_place, script
    assert captured(capsys, "train.py") == by_word != by_place


def test_it_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    captured(capsys, "train.py")
    assert app.main(["plan", "found.json", "--mesh", "2x2", "--budget", "1"]) == 0
    assert "plan on mesh 2x2" in capsys.readouterr().out


def test_a_model_larger_than_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    big = "def big():\n    return build(1 << 34)\n"  # 8 TiB of parameters
    Path("train.py").write_text(GRAPH + BUILD + big)
    assert app.main(["capture", "train.py:big"]) == 0
    assert "4 parameters of 8256.0 GiB, for cpu devices" in capsys.readouterr().out


def test_scripts_find_their_words_and_their_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    """In functions as well; afterwards all is as it was."""
    Path("folder").mkdir()
    Path("folder/width_of_it.py").write_text("WIDTH = 128\n")
    body = "import sys\nassert sys.argv == [__file__]\nfrom width_of_it import WIDTH\n"
    late = body.replace("\n", "\n    ")
    Path("folder/top.py").write_text(body + TRAIN.replace("width=256", "width=WIDTH"))
    Path("folder/late.py").write_text(f"{TRAIN}\ndef make():\n    {late}return build(WIDTH)\n")
    before = sys.argv, list(sys.path), sys.modules["__main__"], autoddl.optimize
    for script in ("folder/top.py", "folder/top.py:build", "folder/late.py:make"):
        sys.modules.pop("width_of_it", None)
        shapes = {t.shape for t in captured(capsys, script).tensors if t.role == "parameter"}
        assert (128, 64) in shapes
        assert before == (sys.argv, sys.path, sys.modules["__main__"], autoddl.optimize)


WRONG = {
    # what the script is, which function is asked for: what the line says
    ("x = (", "build"): "script wrong.py: no Python: '(' was never closed (wrong.py, line 1)",
    ("x = 1\0", "build"): "script wrong.py: no Python: ",
    ("import no_such_module", "build"): "script wrong.py, line 1: ModuleNotFoundError: No module",
    ("\n1 / 0", "build"): "script wrong.py, line 2: ZeroDivisionError: division by zero",
    ("raise SystemExit(3)", "build"): "script wrong.py, line 1: SystemExit: 3",
    ("raise ValueError('\x1b[31m\\n')", "build"): r"line 1: ValueError: \x1b[31m\n",
    ("", "build"): "wrong.py:build: no such function",
    ("def build(): ...", "biuld"): "wrong.py:biuld: no such function; did you mean build?",
    ("build = 3", "build"): "wrong.py:build: no such function",
    ("def build(): return 3", "build"): "wrong.py:build: got 'int'; return (graph, inputs)",
    ("def build(): return 1, 2", "build"): "wrong.py:build: got 'tuple'; return (graph, inputs)",
    ("def build(): return 1, 2, 3", "build"): "wrong.py:build: got 'tuple'; return (graph, inputs)",
    ("def build(): return 1, (2,)", "build"): "capture: got int; give an oneflow.nn.Graph",
    ("def build(x): ...", "build"): "script wrong.py: TypeError: build() missing 1 required",
    ("def build():\n\n    raise KeyError(1)", "build"): "script wrong.py, line 3: KeyError: 1",
    (f"{GRAPH}def build(): return Train(), (flow.ones(3, 3), flow.ones(3, 3))", "build"):
        "OneFlow can't trace it on these inputs: ",
    (f"{GRAPH}def build(): return Train(), ()", "build"): "not built and no inputs given",
    ("x = 1", ""): "script wrong.py: it does not call autoddl.optimize; name a function",
    (BUILD + MAIN, ""): "script wrong.py, line 3: NameError: name 'Train' is not defined",
    ("import autoddl\nautoddl.optimize()", ""): "line 2: TypeError: missing a required argument",
    ("import autoddl\nautoddl.optimize('file.json')", ""): "capture: got str; give an oneflow.nn.Graph",
    (TRAIN.replace("y=y, mesh", "y=y, mush"), ""): "input/output item only support types",
}  # fmt: skip


@pytest.mark.parametrize(("text", "function"), WRONG, ids=range(len(WRONG)))
def test_wrong_scripts(text: str, function: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.py").write_text(text)
    before = sys.argv, list(sys.path), sys.modules["__main__"], autoddl.optimize
    line = refused(capsys, f"wrong.py:{function}" if function else "wrong.py")
    assert WRONG[text, function] in line
    assert before == (sys.argv, sys.path, sys.modules["__main__"], autoddl.optimize)


@pytest.mark.parametrize("script", ["no_such.module:build", "..x:build", "a b:build", "\x1b[31m:f"])
def test_wrong_modules(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, script).startswith("script ")


@pytest.mark.parametrize("name", ["\x1b[31mred.py", "a\rb.py", "a\nb.py", "\u202egpj.py"])
def test_names_of_scripts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_text("1 / 0")
    assert "line 1: ZeroDivisionError" in refused(capsys, f"{name}:build")
    assert "no such function" in refused(capsys, f"train.py:{name[:-3]}")
    assert app.main(["capture", "train.py", "-o", name, "--force"]) == 0
    assert capsys.readouterr().out[:-1].isprintable()


# --- devices -----------------------------------------------------------------------------------

PUT = {
    "nowhere": "Train(width), (flow.randn(32, 64), flow.randn(32, 64))",
    "by to": "Train(width, 'cuda'), (flow.randn(32, 64).to('cuda'), flow.randn(32, 64).cuda())",
    "by device": "Train(width, flow.device('cuda')), (flow.randn(32, 64, device='cuda:0'), "
    "flow.ones(32, 64, device=flow.device('cuda')))",
}
MOVED = GRAPH.replace("width=256):", "width=256, device='cpu'):").replace(
    "flow.nn.Sequential(*layers)", "flow.nn.Sequential(*layers).to(device)"
)


@pytest.mark.parametrize("how", PUT)
def test_the_program_of_cuda_devices_without_one(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MOVED.replace("flow.nn.GELU(),", "flow.nn.LayerNorm(width),")
    Path("train.py").write_text(f"{text}\ndef build(width=256):\n    return {PUT[how]}\n{MAIN}")
    for script in ("train.py:build", "train.py"):
        program = captured(capsys, script, "--device", "cuda")
        assert program.device == "cuda"
        assert [op.type for op in program.ops].count("layer_norm") == 1  # a dozen ops on the CPU


def test_the_device_is_where_the_script_puts_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Of parameters without memory, too, `to` is taken."""
    Path("train.py").write_text(f"{MOVED}{BUILD}")
    program = captured(capsys, "train.py:build")
    assert program.device == "cpu" and all(op.type != "layer_norm" for op in program.ops)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(): return 3", "wrong.py:build: got 'int'; return (graph, inputs)"),
        ("\n1 / 0", "script wrong.py, line 2: ZeroDivisionError"),
        (
            "import oneflow as flow\ndef build(): flow._C.randn((3, 3), device='cuda')",
            "script wrong.py:build: OneFlow ended its process (signal 6); with --device nothing can",
        ),
    ],
)
def test_what_fails_as_on_cuda_devices(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("wrong.py").write_text(text)
    assert app.main(["capture", "wrong.py:build", "--device", "cuda", "-o", "found.json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"autoddl capture: {said}") and err.count("\n") == 1
    assert not Path("found.json").exists()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert app.main(["capture", "train.py", "--device", "cuda"]) == 2
    assert "CUDA without a GPU: no C compiler" in capsys.readouterr().err


def test_a_script_that_swallows_errors_still_ends_where_it_plans(
    capsys: pytest.CaptureFixture[str],
) -> None:
    swallows = "try:\n    autoddl.optimize(Train(), flow.ones(4, 64), flow.ones(4, 64))\n"
    text = f"{GRAPH}{swallows}except Exception:\n    pass\nopen('went_on', 'w')\n"
    Path("train.py").write_text(text)
    captured(capsys, "train.py")
    assert not Path("went_on").exists()


def test_what_is_printed_while_it_is_traced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(
        TRAIN.replace("loss.backward()", "print('so far'); loss.backward()")
    )
    assert app.main(["capture", "train.py:build"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and err == "so far\n"


@pytest.mark.parametrize("device", [(), ("--device", "cuda")])
def test_the_file_is_where_it_was_asked_for_if_the_script_goes_elsewhere(
    device: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    here = Path.cwd()
    Path("folder").mkdir()
    Path("train.py").write_text(f"import os\nos.chdir('folder')\n{TRAIN}")
    assert app.main(["capture", "train.py", "-o", "found.json", *device]) == 0
    assert [path.name for path in here.rglob("*.json")] == ["found.json"]
    assert (here / "found.json").exists() and capsys.readouterr().out.startswith("wrote found.json")


def test_without_oneflow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OneFlow, "installed", lambda engine: False)
    assert refused(capsys, "train.py").startswith("OneFlow is not installed")


def test_a_process_of_its_own_is_quiet() -> None:
    """OneFlow's greeting and its log of a trace are left out; what scripts write is not."""
    Path("train.py").write_text(f"{TRAIN}\nimport sys\nprint('told', file=sys.stderr)\n"
                                .replace(MAIN, ""))  # fmt: skip
    command = [sys.executable, "-m", "autoddl", "capture", "train.py:build"]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    assert (done.returncode, done.stderr) == (0, "told\n")
    assert done.stdout.startswith("wrote program.json: ")


def _environment() -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if k != "GLOG_minloglevel"}
    return {**own, "PYTHONPATH": str(Path(autoddl.__file__).parents[1])}
