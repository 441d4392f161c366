"""Whole objects at once: a model's parameters, an optimizer's state, any Python object.

Promises: after a broadcast every rank has what the root has, with the same types; the root's own is left as it is; no
optimizer is stepped to get there. Objects are serialised with pickle (cloudpickle where that is not enough) and go only
between the ranks of the job, with a code that says so. If one cannot be serialised, every rank raises.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import MismatchError, UsageError
from hora.ops.call import Call
from hora.ops.objects import allgather_object, broadcast_bytes, broadcast_object, pack, unpack
from hora.torch import submit
from hora.torch.adapter import as_bits
from hora.types import Kind

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

Parameters = MutableMapping[str, Any] | Iterable[Any]


def broadcast_parameters(params: Parameters, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Copy the root's parameters into everybody's, in place.

    Entries that are not tensors (a state_dict may hold any object) are sent as objects and put back into the dict or
    list they came from; load it with ``model.load_state_dict`` for a module to see them.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()``, ``model.parameters()``, a list of tensors or of
            (name, tensor) pairs, or a dict.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        process_set: The ranks that take part; all of them unless given.
    """
    if isinstance(params, (torch.Tensor, str)) or not isinstance(params, Iterable):
        raise UsageError(
            f"broadcast_parameters of a {type(params).__name__}. It takes many tensors at once. Give"
            " model.state_dict(), model.named_parameters() or a list of tensors; for one tensor use broadcast_."
        )
    entries = _entries(params)
    _broadcast_tensors(
        [(f"parameter.{name}", value) for _, name, value in entries if isinstance(value, torch.Tensor)],
        root_rank,
        process_set,
    )
    objects = {name: value for _, name, value in entries if not isinstance(value, torch.Tensor)}
    if objects:
        received = broadcast_object(objects, root_rank, "parameter.objects", process_set)
        _put_back(params, {place: (name, received[name]) for place, name, _ in entries if name in objects})


def _entries(params: Parameters) -> list[tuple[Any, str, Any]]:
    """(place in ``params``, name, value) of every entry; names are what ranks pair them by."""
    if isinstance(params, MutableMapping):
        return [(key, str(key), value) for key, value in params.items()]
    pairs = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    entries = [(i, str(i) if name is None else name, value) for i, (name, value) in enumerate(pairs)]
    if len({name for _, name, _ in entries}) < len(entries):
        raise UsageError(
            "broadcast_parameters: two entries have the same name. Ranks pair entries by name. Give each its own, as"
            " model.named_parameters() does."
        )
    return entries


def _put_back(params: Any, received: dict[Any, tuple[str, Any]]) -> None:
    if not isinstance(params, (MutableMapping, list)):
        raise UsageError(
            f"broadcast_parameters: {received} are not tensors, and a {type(params).__name__} cannot be changed to hold"
            " the root's. Give a dict or a list, or leave them out."
        )
    for place, (name, value) in received.items():
        params[place] = (name, value) if isinstance(params, list) and isinstance(params[place], tuple) else value


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank's optimizer the root's state: moments, step counts, learning rates and other options.

    State that only the root has is created on the others with the root's types and shapes, and state that the root has
    not is dropped. Parameters and gradients are not touched.

    Args:
        optimizer: Any torch optimizer but LBFGS, over equally many parameters in equal groups on all ranks.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        model: Taken for Horovod's sake; not needed.
        process_set: The ranks that take part; all of them unless given.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "broadcast_optimizer_state of torch.optim.LBFGS. Its line search evaluates the loss of each rank's own"
            " data, so its state differs between ranks by nature. Use another optimizer."
        )
    _check_layout(optimizer, process_set)
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sender = _TensorsOutOfBand(own)
    engine = session.engine()
    is_root = engine.rank == root_rank
    if is_root:
        options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        data, failure = pack((dict(optimizer.state), options), engine.key, root_rank, sender.persistent_id)
    else:
        data, failure = b"", None
    data = broadcast_bytes(data, root_rank, "optimizer_state", process_set)
    if failure is not None:
        raise failure
    if not is_root:
        state, options = unpack(data, engine.key, root_rank, sender.persistent_load)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, received in zip(optimizer.param_groups, options, strict=True):
            group.update(received)
    tensors = [(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(sender.tensors)]
    _broadcast_tensors(tensors, root_rank, process_set)


class _TensorsOutOfBand:
    """Keeps tensors out of pickled bytes: a parameter goes as its index, another tensor as the recipe for an empty one.

    Both sides end with the same list in ``tensors``, to be broadcast as tensors; one that occurs twice stays one.
    """

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters
        self._index = {id(parameter): i for i, parameter in enumerate(parameters)}
        self._seen: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: object) -> tuple[Any, ...] | None:
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) in self._index:
            return "parameter", self._index[id(value)]
        place = self._seen.setdefault(id(value), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(value)
        return "tensor", place, tuple(value.shape), value.dtype, value.is_cpu

    def persistent_load(self, recipe: tuple[Any, ...]) -> torch.Tensor:
        what, index, *rest = recipe
        place: int = index
        if what == "parameter":
            return self._parameters[place]
        if place == len(self.tensors):
            shape, dtype, on_host = rest
            device = "cpu" if on_host else self._parameters[0].device
            self.tensors.append(torch.empty(shape, dtype=dtype, device=device))
        return self.tensors[place]


def _check_layout(optimizer: torch.optim.Optimizer, process_set: ProcessSet) -> None:
    """All ranks see all ranks' groups, so that a difference raises everywhere instead of leaving some waiting."""
    layout = f"{type(optimizer).__name__} over {[len(group['params']) for group in optimizer.param_groups]} parameters"
    layouts = allgather_object(layout, "optimizer_state.layout", process_set)
    if len(set(layouts)) > 1:
        table = "\n".join(f"  rank {rank}: {text}" for rank, text in zip(process_set.ranks, layouts, strict=True))
        raise MismatchError(
            f"broadcast_optimizer_state: the ranks' optimizers differ:\n{table}\nState cannot be matched to"
            " parameters. Build the same optimizer on all ranks before broadcasting."
        )


def _broadcast_tensors(tensors: list[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """All at once, in place, whatever their types: only bytes are moved."""
    with torch.no_grad():
        calls = [Call(Kind.BROADCAST, name, process_set, root=root_rank) for name, _ in tensors]
        started = [submit.start(call, [as_bits(own)], True) for call, (_, own) in zip(calls, tensors, strict=True)]
        for broadcast in started:
            broadcast.wait()
