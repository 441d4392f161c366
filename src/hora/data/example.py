"""``tf.train.Example``, the message inside TFRecord files, read and written without TensorFlow or protobuf.

In protobuf's wire format a message is a row of fields, each a key (number and type) and a value; here all that matter
are messages within messages::

    Example { Features features = 1 }       Features { map<string, Feature> feature = 1 }
    Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }       each list { repeated value = 1 }

Unknown fields are passed over. Whatever the bytes, the result is a dictionary or BadData.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from hora.errors import BadData

__all__ = ["Value", "parse_example", "write_example"]

Value = list[bytes] | list[float] | list[int]

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5  # the wire's types
_BYTES, _FLOATS, _INTS = 1, 2, 3  # the kinds of Feature


def parse_example(data: bytes | memoryview, only: Collection[str] | None = None) -> dict[str, Value]:
    """The features of an Example; only those in ``only``, if given, and nothing after the last of them is looked at.

    >>> parse_example(write_example({"image/class/label": [7], "image/encoded": [b"..."]}), only=["image/class/label"])
    {'image/class/label': [7]}
    """
    features: dict[str, Value] = {}
    for features_message in _inner(memoryview(data), 1):
        for entry in _inner(features_message, 1):
            name, value = b"", memoryview(b"")
            for number, wire, field in _fields(entry):
                if wire == _LENGTH and number == 1:
                    name = bytes(field)
                elif wire == _LENGTH and number == 2:
                    value = field
            try:
                text = name.decode()
            except UnicodeDecodeError:
                raise BadData(f"a feature is called {name!r}, which is not text. The record is damaged.") from None
            if only is None or text in only:
                features[text] = _feature(value)
                if only is not None and len(features) == len(only):
                    return features
    return features


def write_example(features: Mapping[str, Sequence[bytes] | Sequence[float] | Sequence[int]]) -> bytes:
    """An Example of these features: lists of bytes, of floats (stored as float32) or of integers; sorted by name.

    >>> write_example({"a": [1, 300]}).hex(" ")
    '0a 0e 0a 0c 0a 01 61 12 07 1a 05 0a 03 01 ac 02'
    """
    entries = []
    for name, values in sorted(features.items()):
        if not values:
            feature = b""
        elif isinstance(values[0], bytes):
            feature = _message(_BYTES, b"".join(_message(1, value) for value in values))  # type: ignore[arg-type]
        elif isinstance(values[0], float):
            feature = _message(_FLOATS, _message(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            feature = _message(_INTS, _message(1, b"".join(_varint(int(value) % (1 << 64)) for value in values)))
        entries.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return _message(1, b"".join(entries))


def _feature(message: memoryview) -> Value:
    values: Value = []
    for kind, wire, field in _fields(message):
        if wire != _LENGTH:
            continue
        match kind:  # of several the last counts, as in any oneof
            case 1:
                values = [bytes(item) for item in _inner(field, 1)]
            case 2:
                values = list(_floats(field))
            case 3:
                values = list(_integers(field))
    return values


def _floats(message: memoryview) -> Iterator[float]:
    for number, wire, field in _fields(message):
        if number == 1 and wire in (_FOUR, _LENGTH):  # one, or many packed
            if len(field) % 4:
                raise BadData(f"a list of floats has {len(field)} bytes, which is not a multiple of 4.")
            yield from np.frombuffer(field, "<f4").tolist()


def _integers(message: memoryview) -> Iterator[int]:
    for number, wire, field in _fields(message):
        if number == 1 and wire in (_VARINT, _LENGTH):
            at = 0
            while at < len(field):
                value, at = _read_varint(field, at)
                yield value - (1 << 64) if value >> 63 else value


def _inner(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The messages, or strings, that a message has under one number."""
    for number, wire, field in _fields(message):
        if number == wanted and wire == _LENGTH:
            yield field


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Number, wire type and bytes of each field."""
    at = 0
    while at < len(message):
        key, start = _read_varint(message, at)
        match key & 7:
            case 0:
                _, end = _read_varint(message, start)
            case 1:
                end = start + 8
            case 2:
                nbytes, start = _read_varint(message, start)
                end = start + nbytes
            case 5:
                end = start + 4
            case wire:
                raise BadData(f"a field has the wire type {wire} at byte {at}. This is not a tf.train.Example.")
        if end > len(message):
            raise BadData(
                f"a field from byte {start} to {end} is in a message of {len(message)} bytes. This is not a "
                "tf.train.Example, or it was cut off."
            )
        yield key >> 3, key & 7, message[start:end]
        at = end


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and where it ends."""
    value = shift = 0
    for end in range(at, min(at + 10, len(message))):
        byte = message[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, end + 1
        shift += 7
    raise BadData(f"a number at byte {at} does not end. This is not a tf.train.Example, or it was cut off.")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH]) + _varint(len(content)) + content
