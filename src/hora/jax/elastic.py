"""Elastic training with JAX: a state of trees of arrays, and Horovod's ``run``.

A commit copies the arrays: a step that donates its arguments takes their memory away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hora.elastic import run as elastic_run
from hora.elastic.state import ObjectState, State
from hora.jax import compiled

__all__ = ["JaxState", "ObjectState", "State", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that trains with a state, so that it goes on when workers are lost or come."""

    @functools.wraps(func)
    def finished(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = func(state, *args, **kwargs)
        jax.block_until_ready([leaf for leaf in jax.tree.leaves(vars(state)) if isinstance(leaf, jax.Array)])
        return result

    return elastic_run.run_fn(elastic_run.unwrapping(finished), _reset)


def _reset() -> None:
    compiled.forget_failures()
    elastic_run.reset()


class JaxState(ObjectState):
    """Trees of arrays (parameters, the optimizer's state) and plain values, as attributes.

    >>> import hora.jax as hvd
    >>> import jax.numpy as jnp
    >>> hvd.init()
    >>> state = JaxState(params={"w": jnp.ones(2)}, step=0)
    >>> state.params = {"w": jnp.zeros(2)}; state.restore(); state.params["w"].tolist()
    [1.0, 1.0]
    >>> hvd.shutdown()

    Args:
        kwargs: The attributes and their first values; arrays may be in trees of any form.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def _captured(self) -> dict[str, Any]:
        captured = super()._captured()
        captured["values"] = jax.tree.map(_on_host, captured["values"])
        return captured

    def _take(self, received: dict[str, Any]) -> None:
        received["values"] = jax.tree.map(_from_host, received["values"])
        super()._take(received)


class _Array:
    """A JAX array on its way, as numpy's."""

    def __init__(self, array: Any) -> None:
        self.array = array


def _on_host(leaf: Any) -> Any:
    return _Array(np.asarray(leaf)) if isinstance(leaf, jax.Array) else leaf


def _from_host(leaf: Any) -> Any:
    return jax.numpy.asarray(leaf.array) if isinstance(leaf, _Array) else leaf
