"""Graphs traced as on CUDA devices, on a machine without a GPU.

OneFlow traces other ops for CUDA than for the CPU (one `layer_norm` for a dozen of ops), and mixed
precision casts nothing on the CPU. A trace computes nothing: it asks only how many devices there are.
A library that is loaded before OneFlow's (`environment`) answers: eight. Inside `traced_as_cuda()`
parameters and inputs are on the CPU, and in the job that is traced on CUDA devices; inside
`made_on_cpu()` scripts that put them on CUDA devices leave them on the CPU, since there are none.

    with made_on_cpu():
        graph, x, y = make()
    with traced_as_cuda():
        program = autoddl.capture(graph, x, y)  # program.device == "cuda"
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from autoddl.errors import AutoDDLError

_FACTORIES = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "normal",
    "ones", "ones_like", "rand", "randint", "randint_like", "randn", "randperm", "tensor", "zeros",
    "zeros_like",
)  # fmt: skip
_SOURCE = """
int _ZN7oneflow18GetCudaDeviceCountEv(void) { return 8; }
void _ZN7oneflow19InitCudaContextOnceEi(int device) {}
"""


def environment(folder: Path, more: str = "") -> dict[str, str]:
    """Compile the library into `folder` and return what a process needs to load it first.

    `more` is C that answers more than a trace asks.

    Raises:
        AutoDDLError: no C compiler.
    """
    source, library = folder / "cuda_stand_in.c", folder / "cuda_stand_in.so"
    source.write_text(more + _SOURCE)
    flags = ["-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(
            [os.environ.get("CC", "cc"), *flags], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = re.sub(r"\s+", " ", str(getattr(error, "stderr", "") or error)).strip()
        raise AutoDDLError(
            f"CUDA without a GPU: no C compiler ({reason[:200]}); install one, or name it in CC"
        ) from None
    before = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": os.pathsep.join(filter(None, (str(library), before)))}


@contextmanager
def traced_as_cuda() -> Iterator[None]:
    """Put what graphs read that are traced inside on CUDA devices, as far as their jobs say."""
    from oneflow.framework import graph_build_util as built

    from autoddl.engine.oneflow.capture import abstract

    def to_cuda(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: make(*args).to("cuda")

    state, argument, output = (
        built.build_graph_state, built.build_graph_input_arg, built.build_graph_output,
    )  # fmt: skip
    stand_in = abstract._stand_in
    replaced: list[tuple[Any, str, Any]] = [
        (built, "build_graph_state", to_cuda(state)),
        (built, "build_graph_input_arg", to_cuda(argument)),
        (built, "build_graph_output", lambda name, out: output(name, out.to("cpu"))),
        (abstract, "_stand_in", lambda tensor, device: stand_in(tensor, "cpu")),
    ]
    with ExitStack() as patches:
        for target, name, replacement in replaced:
            patches.enter_context(mock.patch.object(target, name, replacement))
        yield


@contextmanager
def made_on_cpu() -> Iterator[None]:
    """Leave on the CPU what is put on CUDA devices inside: by `to`, `cuda` or the word `device`."""
    import oneflow as flow

    def is_cuda(value: Any) -> bool:
        name = value.type if isinstance(value, flow.device) else value
        return isinstance(name, str) and name.partition(":")[0] == "cuda"

    def without(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*args: Any, **words: Any) -> Any:
            return make(*args, **{k: v for k, v in words.items() if not is_cuda(v)})

        return made

    def moved(move: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(move)
        def to(what: Any, *args: Any, **words: Any) -> Any:
            args = tuple(each for each in args if not is_cuda(each))
            words = {k: v for k, v in words.items() if not is_cuda(v)}
            return move(what, *args, **words) if args or words else what

        return to

    with ExitStack() as patches:
        for kind in (type(flow.zeros(1)), flow.nn.Module):
            patches.enter_context(mock.patch.object(kind, "to", moved(kind.to)))
            patches.enter_context(mock.patch.object(kind, "cuda", lambda what, *_: what))
        for name in _FACTORIES:
            patches.enter_context(mock.patch.object(flow, name, without(getattr(flow, name))))
        yield
