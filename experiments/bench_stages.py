"""Time the cut of 96 layers into 16 stages: `python -m experiments.bench_stages [--seed 0]`.

Layers are equal, of 1, 4 or 10 units each that are uneven; then once all units are uneven.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from autoddl.search.stages import Chain, cut

LAYERS, STAGES, MICRO_BATCHES = 96, 16, 64


def main() -> int:
    """Print seconds with and without a limit, and with preferred places."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0)
    rng = np.random.default_rng(parser.parse_args().seed)
    print(f"{LAYERS} layers into {STAGES} stages, {MICRO_BATCHES} micro-batches")
    print(f"{'units':>5}  {'layers':8}{'no limit':>10}{'limit':>10}{'preferred':>10}  step / bound")
    for units, extra, equal in ((1, 0, True), (4, 2, True), (10, 0, True), (10, 0, False)):
        chain = _chain(rng, LAYERS * units + extra, units if equal else 0)
        start = time.perf_counter()
        free = cut(chain, STAGES, MICRO_BATCHES)
        middle = time.perf_counter()
        cut(chain, STAGES, MICRO_BATCHES, limit_bytes=int(0.9 * max(free.memory_bytes)))
        late = time.perf_counter()
        cut(chain, STAGES, MICRO_BATCHES, preferred=range(units, len(chain.seconds), units))
        end = time.perf_counter()
        total_s = sum(chain.seconds)
        print(
            f"{len(chain.seconds):5}  {'equal' if equal else 'uneven':8}{middle - start:8.3f} s"
            f"{late - middle:8.3f} s{end - late:8.3f} s"
            f"  {free.seconds / (total_s + (MICRO_BATCHES - 1) * total_s / STAGES):.4f}"
        )
    return 0


def _chain(rng: np.random.Generator, units: int, period: int) -> Chain:
    def draw(scale: float) -> list[float]:
        values = scale * (0.1 + rng.random(period or units))
        return np.resize(values, units).tolist()

    return Chain(
        tuple(draw(1e-3)),
        tuple(draw(1e-3)),
        tuple(draw(1e-3)[:-1]),
        tuple(int(v) for v in draw(1e8)),
        tuple(int(v) for v in draw(1e7)),
    )


if __name__ == "__main__":
    sys.exit(main())
