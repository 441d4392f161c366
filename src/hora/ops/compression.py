"""Compression: fewer bytes for a tensor than it has. The compressors of every framework, told once.

Two kinds. A ``Compressor`` is a class without memory, with Horovod's interface: ``compress(tensor)`` gives what to send
and what ``decompress`` needs to know; the reduction happens on what is sent. Anything with these two methods may be
passed as ``compression=``. A ``GradientCompressor`` is an object with a memory, which reduces named gradients itself:
what it leaves out of one step it adds to the next. ``has_memory`` tells them apart.

A framework's ``Compression`` derives from the one here and says how its tensors are cast. A cast that is added to
``Compression`` below is in every framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

from hora.engine.process_set import ProcessSet
from hora.types import DType, ReduceOp

__all__ = [
    "Cast",
    "Compression",
    "Compressor",
    "Element",
    "GradientCompressor",
    "NoneCompressor",
    "cast_of",
    "has_memory",
]


class Compressor(Protocol):
    """What ``compression=`` takes."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever is needed to undo it."""

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The received tensor, as it was before ``compress``."""


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor


@dataclass(frozen=True, slots=True)
class Element:
    """How one framework casts; the hook of ``Compression``.

    ``is_wide`` says whether a tensor is of floating-point numbers of more than 16 bits; ``dtype`` the framework's
    element type, None if it has none, or cannot compute in it; ``cast`` gives the tensor in such a type.
    """

    is_wide: Callable[[Any], bool]
    dtype: Callable[[DType], Any]
    cast: Callable[[Any, Any], Any]


class Cast(Compressor):
    """Sends floating-point tensors wider than 16 bits as a 16-bit type; leaves all others alone."""

    narrow: ClassVar[DType]
    dtype: ClassVar[Any]  # the same, as the framework calls it
    element: ClassVar[Element]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (cls.element.cast(tensor, cls.dtype), tensor.dtype) if cls.element.is_wide(tensor) else (tensor, None)

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls.element.cast(tensor, ctx)


class FP16Compressor(Cast):
    """Reduces in float16: 10 bits of fraction, overflows beyond 65504."""

    narrow = DType.FLOAT16


class BF16Compressor(Cast):
    """Reduces in bfloat16: float32's range with 7 bits of fraction."""

    narrow = DType.BFLOAT16


class Compression:
    """The compressors to choose from. ``class Compression(…, element=…)`` in a framework makes the casts its own."""

    none = NoneCompressor
    fp16: type[Cast] = FP16Compressor
    bf16: type[Cast] = BF16Compressor

    def __init_subclass__(cls, element: Element) -> None:
        for name, cast in list(vars(Compression).items()):
            if isinstance(cast, type) and issubclass(cast, Cast) and (dtype := element.dtype(cast.narrow)) is not None:
                about = {"__module__": cls.__module__, "__doc__": cast.__doc__, "element": element, "dtype": dtype}
                setattr(cls, name, type(cast.__name__, (cast,), about))


def cast_of(compression: Any) -> type[Cast] | None:
    """The compression, if all that it does is to cast: then a backend or a bucket may do it in its place."""
    if not (isinstance(compression, type) and issubclass(compression, Cast)):
        return None
    as_it_is = compression.compress.__func__ is Cast.compress.__func__  # type: ignore[attr-defined]
    return compression if as_it_is else None


@runtime_checkable
class GradientCompressor(Protocol):
    """What optimizers take as ``compression=`` besides a ``Compressor``. Gradients are torch's tensors in
    ``hora.torch``; from the other front-ends they are numpy arrays, also from inside compiled programs."""

    raw_bytes: int
    """The gradients this rank has been given so far."""

    wire_bytes: int
    """What it has handed to collectives for them."""

    def start(self, name: str, gradient: Any, op: ReduceOp, process_set: ProcessSet) -> Callable[[], Any]:
        """Begin to reduce a gradient. The function returned waits, leaves the result in the gradient and returns it."""

    def report(self) -> str:
        """One line for people: what was saved."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's memory, in plain tensors and numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a memory."""


def has_memory(compression: Any) -> TypeGuard[GradientCompressor]:
    """Whether it reduces gradients itself."""
    return hasattr(compression, "start")
