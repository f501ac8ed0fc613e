"""Time and memory of capturing and planning a 24-layer, 1024-wide GPT on mesh 4x8.

`python -m experiments.bench_plan [--json FILE]` prints each figure beside its bar: capture at most
10 s and 1.2 GB, planning at most 30 s, the plan no worse than data parallel and Megatron under the
same model. The exit code is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import autoddl
from experiments.models import gpt

CAPTURE_BAR_S, CAPTURE_BAR_BYTES, PLAN_BAR_S = 10.0, 1.2e9, 30.0


def main() -> int:
    """Measure, print, compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", default="4x8")
    parser.add_argument("--memory", default="64GiB", help="per device")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    begin = time.perf_counter()
    with autoddl.abstract_parameters():
        graph, inputs = gpt.build(**gpt.SIZES["medium"], optimizer="adam")
    program = autoddl.capture(graph, *inputs)
    capture_s = time.perf_counter() - begin
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin = time.perf_counter()
    plan = autoddl.optimize(program, mesh=args.mesh, memory=args.memory)
    plan_s = time.perf_counter() - begin
    parameters = sum(program.tensor[p.tensor].elements for p in program.parameters)
    best = min(baseline.step_s for baseline in plan.baselines)
    figures = {
        "ops": len(program.ops),
        "parameters": parameters,
        "capture_s": capture_s,
        "capture_peak_bytes": peak_bytes,
        "plan_s": plan_s,
        "plan_step_s": plan.estimate.step_s,
        "baseline_step_s": {b.name: b.step_s for b in plan.baselines},
        "profile": plan.profile,
    }
    print(plan)
    print(f"program: {len(program.ops)} ops, {parameters / 1e6:.0f} M parameters")
    checks = [
        ("capture, model included", f"{capture_s:.1f} s", capture_s <= CAPTURE_BAR_S, "10 s"),
        ("capture, peak memory", f"{peak_bytes / 1e9:.2f} GB", peak_bytes <= CAPTURE_BAR_BYTES, "1.2 GB"),
        (f"planning on {args.mesh}", f"{plan_s:.1f} s", plan_s <= PLAN_BAR_S, "30 s"),
        ("plan / best baseline", f"{plan.estimate.step_s / best:.3f}", plan.estimate.step_s <= best, "1"),
    ]  # fmt: skip
    for name, figure, met, bar in checks:
        print(f"{name}: {figure} (at most {bar}: {'met' if met else 'MISSED'})")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(met for _, _, met, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
