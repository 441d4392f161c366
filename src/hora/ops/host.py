"""Hands numpy arrays to the engine: ``ops.operation``'s collectives on them.

This is what front-ends without a mover of their own stand on: they show their tensors as numpy arrays over the same
memory, and get arrays back that their framework can take without a copy. Nothing here knows of gradients, nor imports a
framework.

Promises: an array that cannot be carried is refused before anything is sent. A contiguous array is read where it lies.
Results lie where ``into`` says, which may be the inputs themselves, or else in fresh memory that begins at a multiple
of 64 bytes, as TensorFlow and JAX want memory they are to adopt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from hora.engine import session
from hora.engine.backend import OperationOutcome, UnderWay
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.ops import operation
from hora.ops.call import Call, Results
from hora.ops.compression import GradientCompressor
from hora.ops.steps import begin_step
from hora.types import Buffer, DType, Kind, Reduction

__all__ = ["ALIGNMENT", "Array", "address_of", "allreduce", "dtype_of", "empty", "flat", "start"]

T = TypeVar("T")
U = TypeVar("U")
Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
"""Fresh results begin at a multiple of this many bytes."""

_DTYPES: dict[np.dtype[Any], DType] = {np.dtype(d.numpy): d for d in DType if d is not DType.BFLOAT16}

# Unsigned integers that the engine does not know are moved as signed ones of their size, and reduced as signed ones
# that hold every value of theirs; what does not fit back into the type wraps, as a sum in it would.
_WIDER: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype("uint16"): np.dtype("int32"),
    np.dtype("uint32"): np.dtype("int64"),
}


def dtype_of(array: Array) -> DType:
    """The engine's element type of an array, or the one that it is reduced in; refuses what it cannot carry.

    >>> dtype_of(np.zeros(3, dtype="float16")).name, dtype_of(np.zeros(3, dtype="uint16")).name
    ('FLOAT16', 'INT32')
    """
    dtype = _DTYPES.get(_WIDER.get(array.dtype, array.dtype)) if isinstance(array, np.ndarray) else None
    return _seldom(array) if dtype is None else dtype


def _seldom(array: Any) -> DType:
    """bfloat16, which numpy only has from others (ml_dtypes), under that name; or an error that says what to do."""
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"a {type(array).__name__} was given where a numpy array is needed. Collectives carry arrays. Use"
            " numpy.asarray(...), or broadcast_object / allgather_object for other objects."
        )
    dtype = array.dtype
    if dtype.name == "bfloat16" and dtype.itemsize == 2:
        return _DTYPES.setdefault(dtype, DType.BFLOAT16)
    if not dtype.isnative:
        fix = "Convert with .astype(array.dtype.newbyteorder('='))"
    elif dtype.kind == "c":
        fix = "Use its real and imaginary parts: array.view(array.real.dtype)"
    elif dtype.kind in "ui":
        fix = "Convert it to int64 to reduce it, or view it as a signed type of its size to move it as it is"
    elif dtype.itemsize == 1:
        fix = "Convert it to bfloat16 to reduce it, or view it as uint8 to move it as it is"
    else:
        fix = "Convert it to one of these, or use broadcast_object / allgather_object"
    known = ", ".join([*(d.name.lower() for d in DType), *map(str, _WIDER)])
    raise UsageError(f"an array of {dtype} was given. Hora carries {known}. {fix}.")


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Fresh memory that begins at a multiple of ``ALIGNMENT`` bytes.

    >>> array = empty((3, 5), np.dtype("float32"))
    >>> array.shape, array.ctypes.data % ALIGNMENT
    ((3, 5), 0)
    """
    nbytes = math.prod(shape) * dtype.itemsize
    block = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -address_of(block) % ALIGNMENT
    return block[start : start + nbytes].view(dtype).reshape(shape)


def address_of(array: Array) -> int:
    """Where the array's memory begins."""
    address: int = array.__array_interface__["data"][0]
    return address


# --- the collectives --------------------------------------------------------------------------------------------------


def start(call: Call, arrays: Sequence[Array], into: Sequence[Array] | None = None) -> UnderWay[Results[Array]]:
    """Begin a collective; the results are new arrays or, of an elementwise one, those of ``into``.

    >>> from hora.engine.process_set import global_process_set
    >>> session.init()
    >>> start(Call(Kind.ALLGATHER, "x", global_process_set), [np.array([1.0, 2.0])]).wait()[:2]
    ([array([1., 2.])], [(2,)])
    >>> session.shutdown()
    """
    if call.memory is not None:
        return _Finishing(_compressed(call, call.memory, arrays))
    session.engine()
    operation.check(call.kind, arrays, dtype_of)
    if call.kind.ops and not _WIDER.keys().isdisjoint([array.dtype for array in arrays]):
        return _widened(call, arrays, into)
    of_a_step = call.grouped and call.kind is Kind.ALLREDUCE and call.name is not None and "gradients" in call.name
    return begin_step(call.name if of_a_step else None, lambda: operation.start(_ADAPTER, call, arrays, into))


def allreduce(
    arrays: Sequence[Array],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    into: Sequence[Array] | None = None,
) -> UnderWay[list[Array]]:
    """``start`` in short, for what Hora itself has to add up: the results are new arrays, or those of ``into``.

    >>> from hora.engine.process_set import global_process_set
    >>> from hora.types import ReduceOp
    >>> session.init()
    >>> array = np.array([1.0, 2.0])
    >>> allreduce([array], Reduction(ReduceOp.SUM, postscale=10.0), "x", global_process_set, into=[array]).wait()
    [array([10., 20.])]
    >>> array
    array([10., 20.])
    >>> session.shutdown()
    """
    call = Call(Kind.ALLREDUCE, name, process_set, how, grouped=grouped)
    return start(call, arrays, into).then(lambda results: results.tensors)


def flat(results: Results[Array]) -> list[Array]:
    """All arrays, then, of those that gather, how many rows came from each rank, for each of them."""
    return [*results.tensors, *(np.array(rows, np.int32) for rows in results.rows)]


def _compressed(call: Call, memory: GradientCompressor, arrays: Sequence[Array]) -> Callable[[], Results[Array]]:
    """Begin to reduce gradients by a compressor with a memory; what waits for it."""
    own = [np.array(array, order="C") for array in arrays]  # it leaves the result where the gradient was
    begun = [memory.start(f"{call.name}.{i}", a, call.how.op, call.process_set) for i, a in enumerate(own)]
    return lambda: Results([finish() for finish in begun])


class _Finishing(UnderWay[T]):
    """What a compressor with a memory has begun: operations of its own, so there is no one request."""

    __slots__ = ("_finish",)

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish = finish

    def done(self) -> bool:
        return False

    def wait(self) -> T:
        return self._finish()

    def then(self, change: Callable[[T], U]) -> UnderWay[U]:
        return _Finishing(lambda: change(self._finish()))


def _widened(call: Call, arrays: Sequence[Array], into: Sequence[Array] | None) -> UnderWay[Results[Array]]:
    """Begin a reduction of arrays some of which are of a type that is reduced in a wider one."""
    if into is not None:
        _check_into(arrays, into)
    types = [array.dtype for array in arrays]

    def narrowed(results: Results[Array]) -> Results[Array]:
        found = results.tensors
        places = [empty(r.shape, t) for r, t in zip(found, types, strict=True)] if into is None else list(into)
        for place, result in zip(places, found, strict=True):
            np.copyto(place, result, casting="unsafe")
        return results._replace(tensors=places)

    wide = [array.astype(_WIDER.get(array.dtype, array.dtype), copy=False) for array in arrays]
    return start(call, wide).then(narrowed)


# --- arrays as memory -------------------------------------------------------------------------------------------------


class _Adapter:
    """``ops.operation.Adapter``; it has no state."""

    device = "cpu"

    def sent(self, tensor: Array) -> Array:
        return tensor if tensor.flags.c_contiguous else tensor.copy(order="C")

    def targets(self, tensors: Sequence[Array], sent: Sequence[Array], into: Sequence[Array] | None) -> Sequence[Array]:
        if into is None:
            return [empty(array.shape, array.dtype) for array in tensors]
        _check_into(tensors, into)
        return [self.sent(array) for array in into]

    def put(self, target: Array, place: Array) -> None:
        place[...] = target

    def buffers(self, tensors: Sequence[Array]) -> list[Buffer]:
        return [Buffer(address_of(array), _moved_as(array), array.shape, array) for array in tensors]

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        return empty(shape, like.dtype)

    def whole_numbers(self, numbers: Sequence[int], like: Array) -> Array:
        return np.array(numbers)

    def bytes_(self, count: int, like: Array) -> Array:
        return np.zeros(count, np.uint8)

    def result(self, tensor: Array, like: Array) -> Array:
        return tensor

    def adopt(self, memory: Any, shape: tuple[int, ...], like: Array) -> Array:
        """Aligned; usually without a copy."""
        if not math.prod(shape):
            return np.empty(shape, like.dtype)
        array = np.frombuffer(memory, np.uint8).view(like.dtype).reshape(shape)
        if address_of(array) % ALIGNMENT:
            aligned = empty(shape, like.dtype)
            aligned[...] = array
            return aligned
        return array

    def read(self, memory: Any) -> list[int]:
        numbers: list[int] = np.frombuffer(memory, np.int64).tolist()
        return numbers

    def follow(self, outcome: OperationOutcome) -> OperationOutcome:
        return outcome


_ADAPTER = _Adapter()


def _moved_as(array: Array) -> DType:
    dtype = dtype_of(array)
    return _DTYPES[np.dtype(f"int{8 * array.itemsize}")] if array.dtype in _WIDER else dtype


def _check_into(arrays: Sequence[Array], into: Sequence[Array]) -> None:
    wanted = [(array.dtype, array.shape) for array in arrays]
    found = [(array.dtype, array.shape) for array in into]
    if wanted != found:
        raise UsageError(
            f"into has arrays of {found} for inputs of {wanted}. Results are as the inputs are. Give one array of the"
            " same type and shape for each input."
        )
    for array in into:
        if not array.flags.writeable:
            raise UsageError(
                f"into has an array of shape {array.shape} that cannot be written to. The result has to go somewhere."
                " Give a writable array, or leave into out."
            )
