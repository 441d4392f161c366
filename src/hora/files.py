"""Files that are complete or absent: written beside their place under a name of their own, then renamed.

Several processes, also of several hosts, may write the same file at once; the last one's file stays. What is
no ordinary file, such as /dev/stdout or a pipe, is written itself, and a link stays a link.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import msgspec.inspect

from hora.errors import UsageError

__all__ = ["from_json", "json_text", "replacing", "replacing_path", "write_json"]

T = TypeVar("T")
_ANY = msgspec.inspect.AnyType()


@contextlib.contextmanager
def replacing_path(path: Path) -> Iterator[Path]:
    """A name to write to, for whoever opens files themselves; it becomes ``path`` when the block ends well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with replacing_path(Path(place) / "a.h5") as part:
    ...         _ = part.write_bytes(b"all of it")
    ...     [path.name for path in Path(place).iterdir()]
    ['a.h5']
    """
    if path.exists() and not path.is_file():
        yield path
        return
    if path.is_symlink():
        path = path.resolve()
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which becomes ``path`` when the block ends well; else nothing is left of it.

    ``durable`` waits for the disk first, so that it is complete after a power cut too; a million small files need not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with replacing(Path(place) / "labels") as file:
    ...         _ = file.write(b"all of it")
    ...     (Path(place) / "labels").read_bytes()
    b'all of it'
    """
    with replacing_path(path) as part, open(part, "wb") as file:
        yield file
        if durable and part != path:
            file.flush()
            os.fsync(file.fileno())


def json_text(document: Any) -> bytes:
    """A document as a file for people and programs.

    >>> json_text({"epochs": [1, 2]})
    b'{\\n "epochs": [\\n  1,\\n  2\\n ]\\n}\\n'
    """
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def from_json(data: bytes, kind: type[T]) -> T:
    """What ``json_text`` made of a value of this kind. JSON has no nan and no infinity: both come back as nan.

    What else is null and must not be has its default. Raises msgspec.DecodeError, or ValidationError, which is one.

    >>> from_json(json_text({"a": [0.5, math.nan], "b": [math.inf]}), dict[str, list[float]])
    {'a': [0.5, nan], 'b': [nan]}
    """
    return msgspec.convert(_with_nans(msgspec.json.decode(data), msgspec.inspect.type_info(kind)), kind, str_keys=True)


def _with_nans(value: Any, kind: msgspec.inspect.Type) -> Any:
    """The value, with nan in the place of null where only a number can be."""
    match kind:
        case msgspec.inspect.FloatType() if value is None:
            return math.nan
        case msgspec.inspect.ListType(item_type=of) if isinstance(value, list):
            return [_with_nans(each, of) for each in value]
        case msgspec.inspect.DictType(value_type=of) if isinstance(value, dict):
            return {name: _with_nans(each, of) for name, each in value.items()}
        case msgspec.inspect.StructType(fields=fields) if isinstance(value, dict):
            kinds = {field.encode_name: field.type for field in fields}
            filled = {name: _with_nans(each, kinds.get(name, _ANY)) for name, each in value.items()}
            return {name: each for name, each in filled.items() if each is not None or _may_be_null(kinds.get(name))}
    return value


def _may_be_null(kind: msgspec.inspect.Type | None) -> bool:
    return isinstance(kind, msgspec.inspect.AnyType) or (
        isinstance(kind, msgspec.inspect.UnionType) and kind.includes_none
    )


def write_json(path: Path, document: Any, flag: str) -> None:
    """Write what the user asked for with ``flag``, as JSON; its folder is made if need be. Raises UsageError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_json(Path(place) / "new" / "result.json", {"loss": 0.25}, "--json")
    ...     (Path(place) / "new" / "result.json").read_text()
    '{\\n "loss": 0.25\\n}\\n'
    >>> write_json(Path("/proc/result.json"), {}, "--json")
    Traceback (most recent call last):
    hora.errors.UsageError: --json /proc/result.json cannot be written: No such file or directory. Give another file.
    """
    text = json_text(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be written: {error.strerror}. Give another file.") from None
