"""One worker publishes a value and others look it up, through the PMIx server that started them (``mpirun``).

Run as a process of its own, ``python pmix.py LIBRARY KEY SECONDS``: publishes its standard input, or, if that is
empty, looks the key up until it is there, and prints it. In a worker's own process this would get in the way of MPI,
which must be the first to use PMIx. Only the standard library, so that it starts fast.
"""

from __future__ import annotations

import ctypes
import sys
import time

_STRING = 3
_AGAIN_S = 0.05


class _Process(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("text", ctypes.c_char_p), ("rest", ctypes.c_char * 16)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class _Data(ctypes.Structure):
    _fields_ = [("process", _Process), ("key", ctypes.c_char * 512), ("value", _Value)]


def main(library: str, key: str, seconds: str) -> int:
    lib, none = ctypes.CDLL(library), ctypes.c_size_t(0)
    word = sys.stdin.buffer.read()
    if code := lib.PMIx_Init(ctypes.byref(_Process()), None, none):
        print(f"PMIx_Init: {code}", file=sys.stderr)
        return 1
    if word:
        info = _Info(key.encode(), 0, _Value(_STRING, word))
        code = lib.PMIx_Publish(ctypes.byref(info), ctypes.c_size_t(1))
    else:
        end, code = time.monotonic() + float(seconds), -1
        while code and time.monotonic() < end:
            data = _Data(key=key.encode())
            code = lib.PMIx_Lookup(ctypes.byref(data), ctypes.c_size_t(1), None, none)
            if code:
                time.sleep(_AGAIN_S)
            else:
                print((data.value.text or b"").decode(), flush=True)
    lib.PMIx_Finalize(None, none)
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
