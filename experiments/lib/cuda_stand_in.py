"""Graphs traced as on CUDA devices, and plans compiled for them, on a machine without a GPU.

OneFlow traces other ops for CUDA than for the CPU (one `layer_norm` for a dozen of ops), and mixed
precision casts nothing on the CPU. A trace computes nothing: it asks only how many devices there are,
and a compilation only for the workspace of convolutions. A library that is loaded before OneFlow's
(`environment`) answers both: eight devices, and an algorithm without workspace. When OneFlow has its
plan, the library writes it to the file PLAN of the working directory, and ends the process.
Inside `traced_as_cuda()` parameters and inputs are on the CPU, and in the job that is traced on CUDA
devices.

    with traced_as_cuda():
        program = autoddl.capture(graph, x, y)  # program.device == "cuda"
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from autoddl.errors import AutoDDLError

PRECISIONS = ("float32", "float16", "bfloat16")
PLAN = "plan.pb"  # a message of the type oneflow.core.job.plan_pb2.Plan

# OneFlow reads the first result of cuDNN's heuristics: an algorithm (1) without workspace.
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int _ZN7oneflow18GetCudaDeviceCountEv(void) { return 8; }
void _ZN7oneflow19InitCudaContextOnceEi(int device) {}

typedef struct {
  int algorithm, status; float seconds; size_t bytes; int determinism, math, reserved[3];
} Found;
static int handle;
void *_ZN7oneflow15CudnnHandlePool3GetEv(void *pool) { return &handle; }
void _ZN7oneflow15CudnnHandlePool3PutEP12cudnnContext(void *pool, void *h) {}
#define FAKE(name) \
  int cudnnGetConvolution##name##AlgorithmMaxCount(void *h, int *count) { *count = 1; return 0; } \
  int cudnnGetConvolution##name##Algorithm_v7(void *h, void *a, void *b, void *c, void *d, \
                                              int wanted, int *count, Found *found) { \
    memset(found, 0, sizeof *found); \
    found->algorithm = found->determinism = *count = 1; \
    return 0; \
  } \
  int cudnnGetConvolution##name##WorkspaceSize(void *h, void *a, void *b, void *c, void *d, \
                                               int algorithm, size_t *bytes) { \
    *bytes = 0; \
    return 0; \
  }
FAKE(Forward)
FAKE(BackwardData)
FAKE(BackwardFilter)

// The last thing that OneFlow does to its plan.
void _ZN7oneflow8PlanUtil23DumpCtrlRegstInfoToPlanEPNS_4PlanE(void *plan) {
  Dl_info caller;
  dladdr(__builtin_return_address(0), &caller);
  void *library = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  _Bool (*write_to)(const void *, int) =
      dlsym(library, "_ZNK6google8protobuf11MessageLite25SerializeToFileDescriptorEi");
  int file = open(PLAN ".partial", O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (!write_to(plan, file) || close(file) || rename(PLAN ".partial", PLAN)) _exit(1);
  _exit(0);
}
"""


def environment(folder: Path) -> dict[str, str]:
    """Compile the library into `folder` and return what a process needs to load it first.

    Raises:
        AutoDDLError: no C compiler.
    """
    source, library = folder / "cuda_stand_in.c", folder / "cuda_stand_in.so"
    source.write_text(_SOURCE)
    flags = ["-shared", "-fPIC", "-w", f'-DPLAN="{PLAN}"', "-o", str(library), str(source), "-ldl"]
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


def mixed(graph: Any, precision: str) -> None:
    """Let a graph compute in float16 or bfloat16 what OneFlow's lists allow; float32 changes nothing."""
    import oneflow as flow

    if precision != "float32":
        graph.config.enable_amp(True, dtype=getattr(flow, precision))
