"""Munge, by which Slurm's nodes authenticate users. What this user seals on one node, only this user opens on another.

A credential is encrypted and authenticated with the cluster's key, which only the ``munged`` of each node has; it says
which user made it, can be opened once on a node, and only for some minutes. Reached through ``libmunge``, which Slurm
itself uses; nothing is needed to build.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from pathlib import Path
from typing import Any

__all__ = ["Munge"]

_LIBRARY = "libmunge.so.2"
_OPTION_SOCKET, _OPTION_USER = 8, 9


@functools.cache
def _library() -> Any:
    try:
        lib = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    lib.munge_ctx_create.restype = ctypes.c_void_p
    lib.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    lib.munge_strerror.restype = ctypes.c_char_p
    lib.munge_encode.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    lib.munge_decode.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32),
    ]  # fmt: skip
    return lib


class Munge:
    """The ``munged`` of this node; ``slurm_conf`` may say that it listens elsewhere than usual."""

    def __init__(self, slurm_conf: str = "") -> None:
        self._socket = b""
        with contextlib.suppress(OSError):
            found = re.search(r"^\s*AuthInfo\s*=.*?\bsocket=([^,\s]+)", Path(slurm_conf).read_text(), re.M | re.I)
            self._socket = found[1].encode() if found else b""

    @property
    def here(self) -> bool:
        """Whether there is a library to ask it with."""
        return _library() is not None

    def seal(self, payload: bytes) -> bytes:
        """A credential that only this user can open; raises OSError."""
        lib, made = _library(), ctypes.c_void_p()
        with self._context() as context:
            lib.munge_ctx_set(context, _OPTION_USER, ctypes.c_uint32(os.getuid()))
            self._check(lib.munge_encode(ctypes.byref(made), context, payload, len(payload)))
        try:
            return ctypes.string_at(made.value or 0)
        finally:
            _free(made)

    def unseal(self, credential: bytes) -> bytes:
        """What this user sealed; raises OSError if it was another user, or if it has been opened here before."""
        lib, text, size = _library(), ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        with self._context() as context:
            code = lib.munge_decode(
                credential, context, ctypes.byref(text), ctypes.byref(size), ctypes.byref(uid), ctypes.byref(gid)
            )
        try:
            self._check(code)
            if uid.value != os.getuid():
                raise PermissionError(f"it was made by another user (uid {uid.value})")
            return ctypes.string_at(text.value or 0, size.value) if size.value else b""
        finally:
            _free(text)

    @contextlib.contextmanager
    def _context(self) -> Any:
        lib = _library()
        context = lib.munge_ctx_create()
        try:
            if self._socket:
                lib.munge_ctx_set(context, _OPTION_SOCKET, ctypes.c_char_p(self._socket))
            yield context
        finally:
            lib.munge_ctx_destroy(context)

    def _check(self, code: int) -> None:
        if code:
            raise OSError(code, f"munge: {_library().munge_strerror(code).decode()}")


def _free(pointer: ctypes.c_void_p) -> None:
    if pointer.value:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(pointer)
