"""One forward, one backward (1F1B): in which order a stage computes micro-batches.

Source: PipeDream-flush (Narayanan et al., 2021). Generated scripts carry the source of this function: it
has to be plain Python.

Example: stage 0 of 2 with 3 micro-batches does F0 F1 B0 F2 B1 B2, stage 1 F0 B0 F1 B1 F2 B2.
"""

from __future__ import annotations


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return what a stage computes in order: ("F", n) and ("B", n) of micro-batch n.

    Forwards fill the pipeline, then each is followed by a backward: at most `stages - stage`
    micro-batches are in flight.
    """
    ahead = min(stages - 1 - stage, micro_batches)
    order = [("F", n) for n in range(ahead)]
    for n in range(micro_batches):
        order += [("F", n + ahead)] if n + ahead < micro_batches else []
        order += [("B", n)]
    return order
