"""How fast a testbed's links are: so slow that data parallelism waits for them on every machine.

Links of one rate would make other workloads where ranks compute faster. So the device is measured first,
and links are as fast as makes data parallelism send for TIMES as long as it computes. Where ranks
compute for 0.4 s and four of them sum 10 MB of gradients, 15 MB go over each link, in 0.8 s at 150
Mbit/s: rounded 200 Mbit/s.
"""

from __future__ import annotations

from autoddl.perfmodel.profile_entries import Device
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.state import broadcast

# More than the 30 % from where on a workload counts as bound by bandwidth, less than the 82 to 84 % of
# the paper's VGG13 on A100; with half of it ops hide most of what is sent.
TIMES = 2.0
_MBIT_BYTES = 1e6 / 8


def link_rate(program: Program, count: int, device: Device) -> str:
    """Return the rate of each node's link, such as "200mbit", rounded to one digit.

    `program` is that whose batch data parallelism splits over `count` ranks.
    """
    of_rank = micro_batch(program, count)
    compute_s = sum(
        device_s(
            device, OpWork.of(of_rank, op, dict.fromkeys(dict(op.operands), broadcast(1)), (1,))
        )
        for op in of_rank.ops
    )
    gradients = [program.tensor[p.gradient] for p in program.parameters if p.gradient]
    # A ring of all ranks crosses every link once in each direction.
    sent_bytes = 2 * (count - 1) / count * sum(tensor.size_bytes for tensor in gradients)
    mbit_s = sent_bytes / (TIMES * compute_s) / _MBIT_BYTES
    return f"{float(f'{mbit_s:.0e}'):g}mbit"
