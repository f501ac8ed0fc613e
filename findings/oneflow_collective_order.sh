#!/usr/bin/env bash
# OneFlow 0.9.0: one graph, compiled again, has another order of its NCCL collectives.
#
# Collectives beside the compute stream are issued strictly in the order that the compiled plan numbers: one that
# is not ready holds up all behind it. So one expects the order in which the program needs them, or at least the
# same each time. Seen: collectives that are ready together (parameters that are gathered, as under ZeRO) have
# the order of a hash map that is seeded anew for each compilation; of twelve, the first layer's may be the last.
#
# No GPU is needed: the graph is compiled for two, and a stub answers how many there are and keeps the plan.
# Needs CPython 3.10 (PYTHON=/path/to/python3.10) and a C compiler. Exits 0 while OneFlow does what is described.

set -euo pipefail
python=${PYTHON:-python3.10}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-input --disable-pip-version-check \
    oneflow==0.9.0 nvidia-cudnn-cu11==8.5.0.96 nvidia-cublas-cu11==11.10.3.66 'numpy<2' 'protobuf<4'
cd "$folder"
cat >stub.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
int _ZN7oneflow18GetCudaDeviceCountEv(void) { return 2; }
void _ZN7oneflow19InitCudaContextOnceEi(int device) {}
void _ZN7oneflow8PlanUtil23DumpCtrlRegstInfoToPlanEPNS_4PlanE(void *plan) { /* called with the whole plan */
  Dl_info caller;
  dladdr(__builtin_return_address(0), &caller);
  void *library = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  _Bool (*write_to)(const void *, int) =
      dlsym(library, "_ZNK6google8protobuf11MessageLite25SerializeToFileDescriptorEi");
  write_to(plan, open("plan.pb", O_CREAT | O_TRUNC | O_WRONLY, 0600));
  _exit(0);
}
C
cc -shared -fPIC -w -o stub.so stub.c -ldl
cat >rank.py <<'PYTHON'
import time

import oneflow as flow
from oneflow import nn

both = flow.placement("cpu", [0, 1])


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        for n in range(1, 13):
            zeros = flow.zeros(2 * n, 4, placement=both, sbp=flow.sbp.split(0))
            self.register_parameter(f"p{n}", nn.Parameter(zeros))

    def forward(self, x):
        for n in range(1, 13):
            x = x + getattr(self, f"p{n}").to_global(sbp=flow.sbp.broadcast).sum()
        return x


class Sums(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = Sum()

    def build(self, x):
        return self.model(x)


graph = Sums()
graph.build_graph(flow.zeros(1, placement=both, sbp=flow.sbp.broadcast))
if flow.env.get_rank() > 0:
    time.sleep(600)  # the first one compiles for both
job = graph._full_job_proto
for group in job.placement.placement_group:
    group.parallel_conf.device_tag = "cuda"
for group in job.placement.blob_placement_group:
    group.parallel_conf.device_tag = "cuda"
for op in job.net.op:
    op.device_tag = "cuda"
graph._full_graph_proto = job
graph.finish_complie_and_init_runtime()
PYTHON
cat >orders.py <<'PYTHON'
import os
import socket
import subprocess
import sys

import oneflow as flow
from oneflow.core.job import plan_pb2


def order():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen([sys.executable, "rank.py"], stderr=subprocess.DEVNULL, env={
            **os.environ, "LD_PRELOAD": os.path.abspath("stub.so"), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank),
        })
        for rank in range(2)
    ]
    try:
        ranks[0].wait(120)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    with open("plan.pb", "rb") as file:
        plan = plan_pb2.Plan.FromString(file.read())
    os.remove("plan.pb")
    (requests,) = plan.collective_boxing_plan.job_id2request_set.values()
    return [one.op_desc.shape.dim[0] // 2 for one in sorted(requests.request, key=lambda one: one.order)]


print("oneflow", flow.__version__, "rows of the parameters in the order in which they are gathered, expected 1 to 12:")
seen = []
for _ in range(4):
    seen.append(order())
    print(*seen[-1], flush=True)
if not all(sorted(one) == list(range(1, 13)) for one in seen) or len(set(map(tuple, seen))) == 1:
    sys.exit("this has changed")
PYTHON
venv/bin/python orders.py 2>errors || { tail -3 errors; exit 1; }
