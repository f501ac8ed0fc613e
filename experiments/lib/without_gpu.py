"""Plans compiled for CUDA devices on a machine without a GPU, and the precisions of graphs there.

A compilation asks for more than a trace (autoddl.engine.oneflow.capture.cuda_stand_in): for the
workspace of convolutions. The library answers with an algorithm without one. When OneFlow has its
plan, the library writes it to the file PLAN of the working directory, and ends the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoddl.engine.oneflow.capture import cuda_stand_in

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
    """Return what a process needs that compiles a plan; as cuda_stand_in.environment."""
    return cuda_stand_in.environment(folder, f'#define PLAN "{PLAN}"\n{_SOURCE}')


def mixed(graph: Any, precision: str) -> None:
    """Let a graph compute in float16 or bfloat16 what OneFlow's lists allow; float32 changes nothing."""
    import oneflow as flow

    if precision != "float32":
        graph.config.enable_amp(True, dtype=getattr(flow, precision))
