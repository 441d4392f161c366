"""Hands numpy arrays to the engine: one function a collective, each returning what is under way.

This is what front-ends without a mover of their own stand on: they show their tensors as numpy arrays over the same
memory, and get arrays back that their framework can take without a copy. All functions take a list of arrays; a group
is a list, a single array a list of one. Nothing here knows of gradients, nor imports a framework.

Promises: an array that cannot be carried is refused before anything is sent. A contiguous array is read where it lies.
Results lie where ``into`` says, which may be the inputs themselves, or else in fresh memory that begins at a multiple
of 64 bytes, as TensorFlow and JAX want memory they are to adopt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hora.engine import session
from hora.engine.backend import Outcome
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.ops.resolve import Reduction, check_rows, equal_splits, scattered_rows, splits_of
from hora.ops.started import Started
from hora.transport.base import Buffer, DType, Kind

__all__ = [
    "ALIGNMENT",
    "Array",
    "Gathered",
    "address_of",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "dtype_of",
    "empty",
    "reducescatter",
]

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


class Gathered(NamedTuple):
    """Rows that came together from all ranks of a set, and how many came from each, in rank order."""

    array: Array
    rows: tuple[int, ...]


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


def allreduce(
    arrays: Sequence[Array],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    into: Sequence[Array] | None = None,
) -> Started[list[Array]]:
    """Combine; the results are new arrays, or those of ``into``.

    >>> from hora.engine.process_set import global_process_set
    >>> from hora.transport.base import ReduceOp
    >>> session.init()
    >>> array = np.array([1.0, 2.0])
    >>> allreduce([array], Reduction(ReduceOp.SUM, postscale=10.0), "x", global_process_set, into=[array]).result()
    [array([10., 20.])]
    >>> array
    array([10., 20.])
    >>> session.shutdown()
    """
    engine = session.engine()
    sent = _outgoing(arrays, "allreduce")
    if not _WIDER.keys().isdisjoint([array.dtype for array in arrays]):
        return _widened(arrays, lambda wide: allreduce(wide, how, name, process_set, grouped=grouped), into)
    outputs, finish = _same_shape_results(arrays, sent, into)
    ticket = engine.submit(
        Kind.ALLREDUCE, name, sent, outputs, op=how.op, prescale=how.prescale, postscale=how.postscale,
        process_set=process_set, grouped=grouped, wire=how.wire,
    )  # fmt: skip
    return Started(engine, ticket, finish)


def broadcast(
    arrays: Sequence[Array],
    root: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    into: Sequence[Array] | None = None,
) -> Started[list[Array]]:
    """Copy the root's; the results are new arrays, or those of ``into``."""
    engine = session.engine()
    sent = _outgoing(arrays, "broadcast")
    outputs, finish = _same_shape_results(arrays, sent, into)
    ticket = engine.submit(Kind.BROADCAST, name, sent, outputs, root=root, process_set=process_set)
    return Started(engine, ticket, finish)


def allgather(
    arrays: Sequence[Array], name: str | None, process_set: ProcessSet, *, grouped: bool = False
) -> Started[list[Gathered]]:
    """Concatenate rows."""
    engine = session.engine()
    sent = _outgoing(arrays, "allgather", rows_matter=True)
    # The bytes received tell the rows, except of rows without elements: those are sent as a number beside the array.
    numbers = [_buffer(np.array([len(array)])) for array in arrays if not _row_bytes(array)]
    ticket = engine.submit(
        Kind.ALLGATHER, name, [*sent, *numbers], [], process_set=process_set, grouped=grouped,
    )  # fmt: skip
    like = [(array.dtype, array.shape[1:], _row_bytes(array)) for array in arrays]

    def finish(outcome: Outcome) -> list[Gathered]:
        extra = (np.frombuffer(memory, np.int64).tolist() for memory in outcome.memory[len(like) :])
        gathered = []
        for (dtype, width, row_bytes), memory, received in zip(like, outcome.memory, outcome.received, strict=False):
            rows = tuple(n // row_bytes for n in received) if row_bytes else tuple(next(extra))
            gathered.append(Gathered(_from_memory(memory, dtype, (sum(rows), *width)), rows))
        return gathered

    return Started(engine, ticket, finish)


def alltoall(
    array: Array, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Started[Gathered]:
    """Exchange rows."""
    engine = session.engine()
    dtype_of(array)
    check_rows("alltoall", array.shape)
    row_bytes = _row_bytes(array)
    if not row_bytes:  # the bytes received tell the rows: a byte stands for each that has no elements
        width, dtype = array.shape[1:], array.dtype
        counted = alltoall(np.zeros(len(array), np.uint8), splits, name, process_set)
        return counted.then(lambda rows: Gathered(np.empty((len(rows.array), *width), dtype), rows.rows))
    set_size = len(process_set.members)
    splits = equal_splits(len(array), set_size) if splits is None else splits_of(splits, len(array), set_size)
    ticket = engine.submit(
        Kind.ALLTOALL, name, [_buffer(array[: sum(splits)])], [], splits=splits, process_set=process_set
    )
    dtype, width = array.dtype, array.shape[1:]

    def finish(outcome: Outcome) -> Gathered:
        rows = tuple(n // row_bytes for n in outcome.received[0])
        return Gathered(_from_memory(outcome.memory[0], dtype, (sum(rows), *width)), rows)

    return Started(engine, ticket, finish)


def reducescatter(
    arrays: Sequence[Array],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
) -> Started[list[Array]]:
    """Combine, and keep this rank's rows."""
    engine = session.engine()
    sent = _outgoing(arrays, "reducescatter", rows_matter=True)
    if not _WIDER.keys().isdisjoint([array.dtype for array in arrays]):
        return _widened(arrays, lambda wide: reducescatter(wide, how, name, process_set, grouped=grouped))
    below = sum(member < engine.rank for member in process_set.members)  # this rank's place in the set
    set_size = len(process_set.members)
    into = [empty((scattered_rows(len(array), set_size, below), *array.shape[1:]), array.dtype) for array in arrays]
    ticket = engine.submit(
        Kind.REDUCESCATTER, name, sent, [_buffer(array) for array in into], op=how.op, prescale=how.prescale,
        postscale=how.postscale, process_set=process_set, grouped=grouped,
    )  # fmt: skip
    return Started(engine, ticket, lambda outcome: into)


# --- arrays as buffers ------------------------------------------------------------------------------------------------


def _outgoing(arrays: Sequence[Array], function: str, rows_matter: bool = False) -> list[Buffer]:
    """What to send for each."""
    if not len(arrays):
        raise UsageError(
            f"grouped_{function} of an empty list. There is nothing that the ranks could agree on. Leave the call"
            " out, on all ranks, where there are no tensors."
        )
    buffers = [_buffer(array) for array in arrays]
    if rows_matter:
        for array in arrays:
            check_rows(function, array.shape)
    return buffers


def _buffer(array: Array) -> Buffer:
    """The array's memory, or that of a contiguous copy."""
    dtype = dtype_of(array)
    if array.dtype in _WIDER:
        dtype = _DTYPES[np.dtype(f"int{8 * array.itemsize}")]
    whole = array if array.flags.c_contiguous else array.copy(order="C")
    return Buffer(address_of(whole), dtype, whole.shape, whole)


def _widened(
    arrays: Sequence[Array],
    start: Callable[[list[Array]], Started[list[Array]]],
    into: Sequence[Array] | None = None,
) -> Started[list[Array]]:
    """Begin a reduction of arrays some of which are of a type that is reduced in a wider one."""
    if into is not None:
        _check_into(arrays, list(into))
    types = [array.dtype for array in arrays]

    def narrowed(results: list[Array]) -> list[Array]:
        places = [empty(r.shape, t) for r, t in zip(results, types, strict=True)] if into is None else list(into)
        for place, result in zip(places, results, strict=True):
            np.copyto(place, result, casting="unsafe")
        return places

    return start([array.astype(_WIDER.get(array.dtype, array.dtype), copy=False) for array in arrays]).then(narrowed)


def _same_shape_results(
    arrays: Sequence[Array], sent: list[Buffer], into: Sequence[Array] | None
) -> tuple[list[Buffer], Callable[[Outcome], list[Array]]]:
    """For results as large as the inputs: where to write, and how the results get to the caller."""
    if into is None:
        fresh = [empty(array.shape, array.dtype) for array in arrays]
        return [_buffer(array) for array in fresh], lambda outcome: fresh
    given = list(into)
    _check_into(arrays, given)
    outputs = [_buffer(array) for array in given]
    if all(output.owner is array for output, array in zip(outputs, given, strict=True)):
        return outputs, lambda outcome: given

    def finish(outcome: Outcome) -> list[Array]:
        for array, output in zip(given, outputs, strict=True):
            if output.owner is not array:
                array[...] = output.owner
        return given

    return outputs, finish


def _check_into(arrays: Sequence[Array], into: list[Array]) -> None:
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


def _from_memory(memory: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array over memory that the engine allocated, aligned; usually without a copy."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    array = np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)
    if address_of(array) % ALIGNMENT:
        aligned = empty(shape, dtype)
        aligned[...] = array
        return aligned
    return array


def _row_bytes(array: Array) -> int:
    nbytes: int = math.prod(array.shape[1:]) * array.dtype.itemsize
    return nbytes
