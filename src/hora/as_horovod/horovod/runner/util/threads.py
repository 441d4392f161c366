"""``horovod.runner.util.threads``: a function in the background, which Horovod's test suite imports first of all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["in_thread"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start ``target(*args)`` in a thread of its own and return the thread; ``silent`` drops what it raises.

    >>> seen = []
    >>> in_thread(seen.append, (3,)).join()
    >>> seen
    [3]
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args is a {type(args).__name__}, and it is taken apart into arguments. Give a tuple: (x,).")

    def quietly() -> None:
        with contextlib.suppress(Exception) if silent else contextlib.nullcontext():
            target(*args)

    thread = threading.Thread(target=quietly, name=name, daemon=daemon)
    thread.start()
    return thread
