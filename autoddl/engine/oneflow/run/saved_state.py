"""What a training step has to keep to go on, as tensors: saved by all ranks, loaded under any plan.

That are the parameters and buffers of the model, and what OneFlow keeps besides: states of optimizers
and the count of steps, on which learning rates and Adam's bias correction depend. Names are those of
`graph.state_dict()` on one device: "model.0.weight" of the graph's module "model", "model.0.weight-m".
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import oneflow as flow

from autoddl import store
from autoddl.checkpoint import sharded_files
from autoddl.checkpoint.sharded_files import Array, Entry, Facts, Index, Shard, Slices
from autoddl.engine.oneflow.capture import op_names
from autoddl.engine.oneflow.capture.shadow import named_variables
from autoddl.engine.oneflow.run.agree import bytes_of, said_by_all, text_of_rank_0
from autoddl.engine.oneflow.run.global_tensors import coordinate, mesh_shape, state_of
from autoddl.errors import AutoDDLError, shown, why
from autoddl.sbp.shards import shard_slices

COUNT = "System-Train-TrainStep"
"""The name under which OneFlow keeps the number of steps done."""


class SavedState:
    """The tensors of a graph, and the `states` of its optimizer that what runs it keeps."""

    def __init__(self, graph: flow.nn.Graph, states: Mapping[str, flow.Tensor]) -> None:
        self.blocks, self.graph = tuple(graph._blocks), str(graph.name)
        self.tensors: dict[str, flow.Tensor] = {**dict(named_variables(graph)), **states}

    def whole(self) -> dict[str, Any]:
        """Return all values, whole and on every rank, as `graph.state_dict()` does on one device."""
        flow._oneflow_internal.eager.Sync()
        mine = dict(self._owned())
        found: dict[str, Array] = {}
        spans = {
            name: [shard.shape, [[s.start, s.stop] for s in shard.slices], shard.values.dtype.name]
            for name, shard in mine.items()
        }
        for rank, told in enumerate(_together(None, spans)):
            for name, (shape, span, dtype) in told.items():
                own = mine[name].values.tobytes() if rank == flow.env.get_rank() else b""
                part = np.frombuffer(bytes_of(rank, own), dtype=dtype)
                array = found.setdefault(name, np.empty(shape, dtype=dtype))
                slices = tuple([slice(*ends) for ends in span])
                array[slices] = part.reshape(array[slices].shape)
        return nested(
            {n: flow.tensor(array) for n, array in found.items()}, self.blocks, self.graph
        )

    def take(self, values: Mapping[str, Any]) -> None:
        """Give all tensors the values of a state dict of whole tensors, nested or not.

        Raises:
            AutoDDLError: it lacks some, or has another shape; nothing is changed then.
        """
        flat = flattened(values)

        def read(name: str, slices: Slices) -> Array:
            tensor = flat[name]
            array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
            return np.asarray(array[slices])

        shapes = {name: tuple(value.shape) for name, value in flat.items()}
        self._fill(shapes, read, "state dict")

    def save(self, folder: str | Path, plan: str) -> None:
        """Write a checkpoint, each rank the shards that it owns, and the text of the plan.

        All ranks have to call it.

        Raises:
            AutoDDLError: a rank can't write; the folder keeps the checkpoint that it had.
        """
        flow._oneflow_internal.eager.Sync()
        folder, rank, failure, entries = Path(folder), flow.env.get_rank(), None, {}
        steps = self.count
        stem = text_of_rank_0(f"{steps}-{os.urandom(4).hex()}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            entries = sharded_files.write_shards(folder, f"{stem}.rank{rank}", dict(self._owned()))
        except (AutoDDLError, OSError) as error:
            failure = _said(error, folder)
        try:
            told = _together(failure, msgspec.to_builtins(entries))
            facts = Facts(steps, plan, self.graph, tuple(self.blocks))
            if rank == 0:
                parts = [msgspec.convert(each, dict[str, Entry]) for each in told]
                try:
                    sharded_files.publish(folder, Index(sharded_files.joined(parts), facts))
                except AutoDDLError as error:
                    failure = str(error)
            _together(failure)
        except AutoDDLError:
            with contextlib.suppress(OSError):
                (folder / f"{stem}.rank{rank}").unlink(missing_ok=True)
            raise

    def load(self, folder: str | Path) -> None:
        """Read a checkpoint, of whatever plan: each rank the parts that it has. All have to call it.

        Raises:
            AutoDDLError: it is damaged, or of another model; nothing is changed where that can be told
                from its index.
        """
        index = sharded_files.read_index(folder)

        def read(name: str, slices: Slices) -> Array:
            return sharded_files.read(folder, index, name, slices)

        shapes, failure = {name: entry.shape for name, entry in index.tensors.items()}, None
        try:
            self._fill(shapes, read, f"checkpoint {store.told(folder)}")
        except AutoDDLError as error:
            failure = str(error)
        _together(failure)

    @property
    def count(self) -> int:
        tensor, own = self.tensors.get(COUNT), None
        if tensor is not None and coordinate(tensor.placement) is not None:
            own = int(tensor.detach().to_local().numpy()[0])
        return max([0, *[count for count in _together(None, own) if count is not None]])

    def _owned(self) -> Iterator[tuple[str, Shard]]:
        """Yield what this rank writes: of copies the first device on each axis does."""
        for name, tensor in self.tensors.items():
            here = coordinate(tensor.placement)
            if here is None:
                continue
            state = state_of(tensor)
            if any(at > 0 for at, each in zip(here, state, strict=True) if not each.is_split):
                continue
            shape = tuple(tensor.shape)
            slices = shard_slices(shape, state, mesh_shape(tensor.placement), here)
            yield name, Shard(shape, slices, tensor.detach().to_local().numpy())

    def _fill(
        self, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str, Slices], Array], what: str
    ) -> None:
        for name, tensor in self.tensors.items():
            if name not in shapes:
                raise AutoDDLError(
                    f"{what}: it has no {shown(name)}, which this model and its optimizer have; give "
                    "that of the same model and optimizer"
                )
            if shapes[name] != tuple(tensor.shape):
                raise AutoDDLError(
                    f"{what}: {shown(name)} has shape {shapes[name]}, here {tuple(tensor.shape)}; give "
                    "that of the same model"
                )
        for name, tensor in self.tensors.items():
            here, mesh = coordinate(tensor.placement), mesh_shape(tensor.placement)
            if here is not None:
                slices = shard_slices(tuple(tensor.shape), state_of(tensor), mesh, here)
                local = tensor.detach().to_local()  # shares the memory that the graph runs on
                # makes one dim of none, as of BatchNorm's count of batches
                values = np.ascontiguousarray(read(name, slices)).reshape(tuple(local.shape))
                local.copy_(flow.tensor(values, dtype=local.dtype, device=local.device))
        flow._oneflow_internal.eager.Sync()


def _together(failure: str | None, said: Any = None) -> list[Any]:
    """Return what every rank says, on every rank; raise the first failure on all, so that none waits.

    Raises:
        AutoDDLError: that of the first rank that failed.
    """
    told = said_by_all([failure, said])
    for first, _ in told:
        if first is not None:
            raise AutoDDLError(first)
    return [each for _, each in told]


def nested(values: Mapping[str, Any], blocks: Sequence[str], graph: str) -> dict[str, Any]:
    """Return values by module of the graph, and then by name, as `graph.state_dict()` has them.

    States of optimizers stay at the top: their names are no path in a module. So do those of loss
    scaling, which have the graph's name.
    """
    found: dict[str, Any] = {block: {} for block in blocks}
    for name, value in values.items():
        block, _, rest = name.partition(".")
        if block in blocks and "-" not in rest.rpartition(".")[2]:
            found[block][rest] = value
        else:
            found[op_names.state_name(name, graph)] = value
    return found


def write(arrays: Mapping[str, Array], blocks: Sequence[str], graph: str, path: str) -> None:
    """Write whole arrays as a state dict that `flow.load` and `graph.load_state_dict` take: a folder.

    Raises:
        AutoDDLError: it can't be written, or there is something at the path, which stays.
    """
    if store.exists(path):
        raise AutoDDLError(
            f"output {store.told(path)}: exists already; remove it or name another (-o)"
        )
    beside = f"{path}.{os.getpid()}"
    tensors = {name: flow.tensor(array) for name, array in arrays.items()}
    try:
        flow.save(nested(tensors, blocks, graph), beside)
        os.replace(beside, path)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise AutoDDLError(
            f"output {store.told(path)}: {error.strerror}; name another (-o)"
        ) from None


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a state dict by their names in programs."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": tensor for inner, tensor in value.items()}
        else:
            found[op_names.state_name(name)] = value
    return found


def _said(error: Exception, folder: Path) -> str:
    if isinstance(error, AutoDDLError):
        return str(error)
    return f"checkpoint {store.told(folder)}: {why(error)}; save elsewhere"
