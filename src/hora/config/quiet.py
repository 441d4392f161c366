"""Filters out what TensorFlow prints about itself when it starts (how it was compiled, what it was optimized for).

``TF_CPP_MIN_LOG_LEVEL=2`` asks TensorFlow not to print it, but it prints some lines before it reads that variable.
Where Hora imports TensorFlow, they are taken out of standard error; the launcher also takes them out of what workers
print. Errors are never filtered, and nothing is if the user has set that variable to 0 or 1.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from hora.config import env

__all__ = ["QuietOutput", "importing_tensorflow"]

# The same for Python and for grep -E. Lines about errors begin with E or F.
_NOISE = (
    r"^(WARNING: All log messages before absl::InitializeLog\(\)|[IW][0-9]{4} [0-9:.]+ +[0-9]+ [^ ]+\.cc:[0-9]+\] )"
)
_IS_NOISE = re.compile(_NOISE.encode())
_WARNING = b"WARNING: All log messages before absl::InitializeLog()"
_MAY_BE_NOISE = re.compile(rb"[IW][0-9]{0,4}$|[IW][0-9]{4} [0-9:.]*( +[0-9]*)?( [^ ]*)?$")  # of a part of a line
_LONGEST_WAIT_S = 2.0  # for what was printed to be passed on


@contextlib.contextmanager
def importing_tensorflow() -> Iterator[None]:
    """Inside, TensorFlow is imported, perhaps by Keras.

    What is printed meanwhile goes through another process, so that nothing is lost should this one crash.
    """
    env.make_tensorflow_quiet()
    variables = env.environ()
    other = variables.get("KERAS_BACKEND") in ("torch", "jax")
    if other or "tensorflow" in sys.modules or variables["TF_CPP_MIN_LOG_LEVEL"] in ("0", "1"):
        yield
        return
    try:
        before = os.dup(2)
    except OSError:  # nobody hears it
        yield
        return
    try:
        through = subprocess.Popen(
            ["grep", "-Ev", _NOISE], stdin=subprocess.PIPE, stdout=before, env={**variables, "LC_ALL": "C"}
        )
    except OSError:  # there is no grep: it is only noise
        os.close(before)
        yield
        return
    assert through.stdin is not None
    os.dup2(through.stdin.fileno(), 2)
    through.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        with contextlib.suppress(subprocess.TimeoutExpired):  # somebody still holds its input; it passes that on
            through.wait(_LONGEST_WAIT_S)


class QuietOutput:
    """What a process prints, without that: as it comes, but for the beginning of what may be noise, which waits.

    >>> hushed = QuietOutput()
    >>> hushed.take(b"one\\nI0000 00:00:17.6   25 port.cc:153] oneDNN"), hushed.take(b" on\\nW"), hushed.take(b"hat? ")
    (b'one\\n', b'', b'What? ')
    >>> hushed.take(b"yes\\nE0000 00:00:17.6   25 cuda.cc:1] no GPU\\nI0"), hushed.end()
    (b'yes\\nE0000 00:00:17.6   25 cuda.cc:1] no GPU\\n', b'I0')
    """

    def __init__(self) -> None:
        self._held = b""
        self._inside = False  # of a line whose beginning was let through

    def take(self, data: bytes) -> bytes:
        """What of it, and of what waited, is to be shown now."""
        shown, lines, self._held = [], (self._held + data).splitlines(keepends=True), b""
        for line in lines:
            whole = line.endswith((b"\n", b"\r"))
            noise = not self._inside and _IS_NOISE.match(line)
            if not whole and not self._inside and (noise or _WARNING.startswith(line) or _MAY_BE_NOISE.match(line)):
                self._held = line
            elif not noise:
                shown.append(line)
                self._inside = not whole
        return b"".join(shown)

    def end(self) -> bytes:
        """What waited in vain."""
        return b"" if _IS_NOISE.match(self._held) else self._held
