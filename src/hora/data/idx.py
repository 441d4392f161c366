"""IDX, the format of MNIST: a magic number that tells element type and dimensions, the sizes, and the bytes.

Read plain or gzipped. Everything is checked before anything is returned.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hora.errors import BadData
from hora.files import replacing

__all__ = ["find_idx", "read_idx", "write_idx"]

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CODES = {np.dtype(name): code for code, name in _TYPES.items()}
_MOST_BYTES = 1 << 40


def read_idx(path: Path, dimensions: int | None = None) -> npt.NDArray[Any]:
    """The array in an IDX file, in the machine's byte order; ``dimensions`` is how many it should have.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_idx(Path(folder) / "labels", np.array([5, 0, 4], np.uint8))
    ...     read_idx(Path(folder) / "labels", dimensions=1)
    array([5, 0, 4], dtype=uint8)
    """
    data = _bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise BadData(f"{path} is not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}. Fetch it again.")
    dtype, rank = np.dtype(_TYPES[data[2]]), data[3]
    if dimensions is not None and rank != dimensions:
        raise BadData(f"{path} has {rank} dimensions, not {dimensions}: images and labels may have been swapped.")
    start = 4 + 4 * rank
    if len(data) < start:
        raise BadData(f"{path} ends inside its header, after {len(data)} bytes. Fetch it again.")
    shape = struct.unpack(f">{rank}I", data[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected or expected > _MOST_BYTES:
        raise BadData(f"{path} should have {expected} bytes for shape {shape}, but has {len(data)}. Fetch it again.")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def write_idx(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as an IDX file, gzipped if the name ends in ``.gz``; completely or not at all."""
    dtype = array.dtype.newbyteorder(">") if array.dtype.itemsize > 1 else array.dtype
    code = next((code for known, code in _CODES.items() if known == dtype), None)
    if code is None:
        raise BadData(f"IDX has no element type {array.dtype}. It has uint8, int8, int16, int32, float32 and float64.")
    data = (
        bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(dtype).tobytes()
    )
    with replacing(path) as file:
        file.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def find_idx(folder: Path, name: str) -> Path:
    """Where a file of this name is, plain or gzipped; plain if it is not there.

    >>> find_idx(Path("mnist"), "labels").as_posix()
    'mnist/labels'
    """
    zipped = folder / f"{name}.gz"
    return zipped if zipped.exists() and not (folder / name).exists() else folder / name


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except FileNotFoundError:
        raise BadData(f"{path} does not exist. Check --data, or get the data set with 'hora data get mnist'.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadData(f"{path} cannot be unpacked: {error}. It was cut off or altered; fetch it again.") from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}.") from None
