#!/usr/bin/env bash
# OneFlow 0.9.0, eager, ranks on CPUs: a message overtakes what was called before it, and holds up what is called after.
#
# Calls return at once and run later. One expects that what one rank calls runs in the order of the calls, as on a
# stream; or that a message is beside computations, and then waits for none and holds none up. Seen: send runs as soon
# as its own tensor is there, before products that were called earlier. Products that are called behind a recv, and do
# not need what it receives, wait until that has come; those called before it do not. Pipelines of stages have to
# synchronise before each message (flow._oneflow_internal.eager.Sync()) to keep the order of their schedule.
#
# Needs CPython 3.10 (PYTHON=/path/to/python3.10). Exits 0 while OneFlow does what is described.

set -euo pipefail
python=${PYTHON:-python3.10}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-input --disable-pip-version-check \
    oneflow==0.9.0 nvidia-cudnn-cu11==8.5.0.96 nvidia-cublas-cu11==11.10.3.66 'numpy<2' 'protobuf<4'
cd "$folder"
cat >messages.py <<'PYTHON'
import time

import oneflow as flow

rank, weight, message = flow.env.get_rank(), flow.randn(1024, 1024), flow.ones(256)


def products(count):
    x = weight
    for _ in range(count):
        x = flow.matmul(x, weight) * 1e-3
    return x


def wait_for(x):
    return x.flatten()[0].numpy()


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


wait_for(products(4))
own_s = seconds(lambda: wait_for(products(20)))
found = []
for _ in range(3):
    flow.comm.barrier()
    begin = time.perf_counter()
    if rank == 0:  # products first, then a message that does not need them
        last = products(20)
        flow.comm.send(message, 1, send_meta=False)
        wait_for(last)
    else:
        wait_for(flow.comm.recv(0, (256,), flow.float32, message.device))
        overtakes = (time.perf_counter() - begin) / own_s
    flow.comm.barrier()
    begin = time.perf_counter()
    if rank == 0:  # a message that comes late
        time.sleep(2 * own_s)
        flow.comm.send(message, 1, send_meta=False)
    else:  # a message first, then products that do not need it
        arrives = flow.comm.recv(0, (256,), flow.float32, message.device)
        wait_for(products(20))
        waits = (time.perf_counter() - begin) / own_s
        wait_for(arrives)
    flow.comm.barrier()
    begin = time.perf_counter()
    if rank == 0:
        time.sleep(2 * own_s)
        flow.comm.send(message, 1, send_meta=False)
    else:  # products first, then a message that they do not need
        last = products(20)
        arrives = flow.comm.recv(0, (256,), flow.float32, message.device)
        wait_for(last)
        before = (time.perf_counter() - begin) / own_s
        wait_for(arrives)
        found.append((overtakes, waits, before))
if rank == 1:
    early, late, before = (sorted(each)[1] for each in zip(*found))
    print(f"20 products take {own_s:.2f} s; in units of that:")
    print(f"a message behind 20 products has come after {early:.2f} (in order: 1)")
    print(f"20 products behind a message that is sent after 2 are done after {late:.2f} (beside it: 1)")
    print(f"20 products before such a message are done after {before:.2f} (in order: 1)")
    right = early < 0.5 and late > 2.3 and before < 1.7
    raise SystemExit(0 if right else "OneFlow does something else now")
PYTHON
export OMP_NUM_THREADS=1
"$folder/venv/bin/python" -m oneflow.distributed.launch --nproc_per_node 2 messages.py 2>&1 |
    grep -v -e "ibverbs" -e "\*\*\*\*" -e "OMP_NUM_THREADS" -e '^$'
