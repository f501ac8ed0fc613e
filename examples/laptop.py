"""Plan on a laptop, without GPUs and without OneFlow: how long is a step on 8, 16, 32 H100?

python examples/laptop.py gpt.json

gpt.json is the program of a training step, as `python -m autoddl capture` writes it: see gpt.py.
"""

import sys

import autoddl

(program,) = sys.argv[1:]
for mesh in ("1x8", "2x8", "4x8"):
    plan = autoddl.optimize(program, mesh=mesh, profile="h100", budget=20)
    took, most = plan.estimate, plan.search.lower_bound_s
    expert = min(plan.baselines, key=lambda row: row.step_s)
    print(
        f"{mesh}: {took.step_s * 1e3:.1f} ms (no plan less than {most * 1e3:.1f} ms), "
        f"{took.memory_bytes / 2**30:.1f} GiB; {expert.name} {expert.step_s * 1e3:.1f} ms"
    )
    plan.save(f"plan-{mesh}.json")
