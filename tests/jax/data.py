"""What bodies of JAX have in common: data of every rank, comparing, and running eagerly and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16", "float32", "bool")


def array(rank: int, shape: tuple[int, ...] = (4, 3), dtype: str = "float32") -> Any:
    """Small whole numbers of one rank, the same wherever they are computed: sums are exact in every type."""
    random = np.random.default_rng([rank, *shape, 7])
    return jnp.asarray(random.integers(1, 4, shape) % (2 if dtype == "bool" else 4), dtype)


def wide(values: Any) -> Any:
    return np.asarray(values).astype(np.float64)


def ways(work: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function as it is, and compiled; compiled it is run twice, the second time without tracing."""
    yield "eager", work
    compiled = jax.jit(work)
    yield "compiled", compiled
    yield "compiled again", compiled


def check(result: Any, expected: Any, what: object = "", dtype: str = "") -> None:
    """Same shape, nearly the same values, and a JAX array of the type."""
    assert isinstance(result, jax.Array), f"{what}: a {type(result).__name__}"
    assert result.dtype.name == (dtype or "float32"), f"{what}: {result.dtype}"
    wanted = wide(expected)
    assert result.shape == wanted.shape, f"{what}: {result.shape} where {wanted.shape} was expected"
    assert np.allclose(wide(result), wanted, rtol=1e-5, atol=1e-6), f"{what}: {result} where {wanted} was expected"


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """Like pytest.raises, with every word required in the message."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")
