"""What stages send each other for each micro-batch, as the simulation of a step needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoddl.engine.model import EngineModel
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep, StageWork, TransferWork
from autoddl.plan.parts import Transfer
from autoddl.sbp.program import Program


def pipeline_step(
    engine: EngineModel,
    works: Sequence[StageWork],
    micro_batches: int,
    sent: tuple[TransferWork, ...],
    in_flight: Sequence[int],
    orders: tuple[str, ...] = (),
) -> PipelineStep:
    """Return what the simulation of a step needs; `in_flight` are the credits of the stages."""
    return PipelineStep(
        tuple(works), micro_batches, sent, schedule=engine.schedule, credits=tuple(in_flight),
        rendezvous=engine.rendezvous, orders=orders,
    )  # fmt: skip


def sent_works(
    engine: EngineModel, program: Program, transfers: Sequence[Transfer]
) -> tuple[TransferWork, ...]:
    """Return what goes between stages for each micro-batch, as an engine sends it."""
    if engine.rendezvous:
        return tuple(script_messages(program, transfers))
    return tuple(
        TransferWork(item.source, item.target, item.seconds, item.tensor)
        for item in transfers
        if item.seconds is not None
    )


def script_messages(program: Program, transfers: Sequence[Transfer]) -> Iterator[TransferWork]:
    """Yield what scripts send: what forward ops read, and its gradient back from where it was read.

    A plan may add gradients up on their way; autograd does so where the tensor was made.
    """
    read = {tensor for op in program.ops if op.phase == "forward" for _, tensor in op.inputs}
    for item in transfers:
        if item.tensor in read and item.source < item.target:
            seconds = item.seconds or 0.0
            yield TransferWork(item.source, item.target, seconds, item.tensor)
            if "float" in program.tensor[item.tensor].dtype:
                yield TransferWork(item.target, item.source, seconds, item.tensor)
