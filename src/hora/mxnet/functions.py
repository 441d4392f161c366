"""Whole objects at once: the parameters of a model.

Gluon gives many parameters their shape only when the first batch comes. Those are broadcast at that moment, by every
rank, each under its own name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.mxnet.adapter import put_back, view
from hora.mxnet.compat import when_initialised
from hora.ops import host
from hora.ops.call import Call
from hora.types import Kind

__all__ = ["broadcast_parameters"]


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Copy the root's parameters into everybody's, in place; those without a shape yet, once they have one.

    Args:
        params: ``net.collect_params()``, ``module.get_params()[0]``, or a dict of arrays or parameters.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        prefix: Put in front of the names; two models whose parameters have the same names need two.
        process_set: The ranks that take part; all of them unless given.
    """
    if not isinstance(params, (Mapping, mx.gluon.ParameterDict)):
        raise UsageError(
            f"broadcast_parameters of a {type(params).__name__}. It takes many arrays at once. Give"
            " net.collect_params() or a dict of arrays; for one array use broadcast_."
        )
    tensors: dict[str, Any] = {}
    for key, value in sorted(params.items()):
        name = f"parameter.{prefix or ''}{key}"
        if not isinstance(value, mx.gluon.Parameter):
            tensors[name] = value
            continue
        try:
            tensors[name] = value.data(value.list_ctx()[0]) if value._data is not None else value.data()
        except mx.gluon.parameter.DeferredInitializationError:
            when_initialised(
                value, functools.partial(_broadcast, root_rank=root_rank, name=name, process_set=process_set)
            )
    for name, tensor in tensors.items():
        _broadcast([tensor], root_rank, name, process_set)


def _broadcast(copies: list[Any], root_rank: int, name: str, process_set: ProcessSet) -> None:
    """Of the copies that one process has on several devices, the first is sent."""
    memory = view(copies[0], write=True)
    host.start(Call(Kind.BROADCAST, name, process_set, root=root_rank), [memory], [memory]).wait()
    for copy in copies:
        put_back(copy, memory)
