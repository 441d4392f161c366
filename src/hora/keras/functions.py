"""Whole models at once: their variables and their files.

Promises: after a broadcast every rank has the root's values in all variables of the model and its optimizer, but for
the state of random number generators, which every rank keeps: workers are to drop out different neurons. Ranks whose
models differ are all told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import MismatchError, UsageError
from hora.keras.adapter import on_host, to_numpy
from hora.keras.compat import restore_state
from hora.keras.optimizer import DistributedOptimizer
from hora.ops import host
from hora.ops.call import Call
from hora.types import Kind

__all__ = ["broadcast_global_variables", "broadcast_model", "broadcast_variables", "load_model"]


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, name: str = "variables"
) -> None:
    """Give all ranks the root's values of these variables; paired by their order, which must be the same everywhere.

    Args:
        variables: Keras variables, such as ``model.variables``.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        process_set: The ranks that take part; all of them unless given.
        name: What the operation is called; every rank must use the same.
    """
    ours = [variable for variable in variables if not _is_random_state(variable)]
    if len(process_set.members) == 1:
        return
    _check_number(ours, process_set, name)
    arrays = [to_numpy(variable) for variable in ours]
    calls = [Call(Kind.BROADCAST, f"{name}.{i}", process_set, root=root_rank) for i in range(len(arrays))]
    moved = [host.start(call, [on_host(array)]) for call, array in zip(calls, arrays, strict=True)]
    root = session.engine().rank == root_rank
    for variable, array, started in zip(ours, arrays, moved, strict=True):
        (result,) = started.wait().tensors
        if not root:
            variable.assign(result.view(array.dtype))


def _is_random_state(variable: Any) -> bool:
    return str(getattr(variable, "name", "")).startswith("seed_generator_state")


def _check_number(variables: Sequence[Any], process_set: ProcessSet, name: str) -> None:
    """All ranks see all ranks' numbers, so that a difference raises everywhere instead of leaving some waiting."""
    call = Call(Kind.ALLGATHER, f"{name}.number", process_set)
    numbers = host.start(call, [np.array([len(variables)])]).wait().tensors[0].tolist()
    if len(set(numbers)) > 1:
        table = "\n".join(f"  rank {rank}: {n}" for rank, n in zip(process_set.ranks, numbers, strict=True))
        raise MismatchError(
            f"broadcast of variables: the ranks have different numbers of them:\n{table}\nTheir values cannot be"
            " matched. Build the same model, and compile it with the same optimizer, on all ranks."
        )


def broadcast_model(
    model: Any, root_rank: int, process_set: ProcessSet = global_process_set, local_variables: Iterable[Any] = ()
) -> None:
    """Give all ranks the root's model and the state of its optimizer, whose variables are made if need be.

    Args:
        model: A Keras model that is built.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        process_set: The ranks that take part; all of them unless given.
        local_variables: Variables that every rank keeps.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    own = {id(variable) for variable in local_variables}
    shared = [variable for variable in model.variables if id(variable) not in own]
    broadcast_variables(shared, root_rank, process_set, "model")
    if optimizer is not None:
        broadcast_variables(optimizer.variables, root_rank, process_set, "optimizer")


def broadcast_global_variables(root_rank: int, model: Any = None) -> None:
    """Give all ranks the root's model and the state of its optimizer: ``broadcast_model`` under Horovod's name.

    Args:
        root_rank: The rank to copy from.
        model: The model. Keras 3 has no list of all variables there are, so it has to be said which.
    """
    if model is None:
        raise UsageError(
            f"broadcast_global_variables({root_rank}) without a model. Keras 3 keeps no list of all variables there"
            " are. Say broadcast_global_variables(root_rank, model), or give model.fit the callback"
            " BroadcastGlobalVariablesCallback."
        )
    broadcast_model(model, root_rank)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = None,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """A saved model, with its optimizer made distributed and the state that was saved.

    Args:
        filepath: A file that ``model.save`` wrote, with or without Hora.
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Other classes and functions that Keras does not know, by their names.
        compression: As for ``DistributedOptimizer``.
        legacy_opts: Taken for Horovod's sake: Keras 3 has no older optimizers.
        **options: More for ``keras.models.load_model``, such as ``safe_mode``.
    """
    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known or None, **options)
    if getattr(model, "optimizer", None) is not None:
        restore_state(model, filepath)
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
