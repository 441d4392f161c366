"""The worker's side of ``hora.run``: a script that calls the function it was sent and returns the result.

It is given two inherited descriptors: a file with the call, and a pipe for the answer. Both were made by the process
that called ``hora.run``, or by its agent on this host, and no other process can reach them, which is why pickles may
be sent over them; between hosts they are sent in frames that are authenticated with the job's secret (``wire.frame``).
"""

from __future__ import annotations

import json
import os
import sys

__all__ = ["ANSWER_ERROR", "ANSWER_RESULT", "frame"]

ANSWER_RESULT, ANSWER_ERROR = b"R", b"E"


def frame(head: object, body: bytes) -> bytes:
    """A line of JSON and bytes after it, to be read back with ``partition``.

    >>> frame({"a": 1}, b"rest")
    b'{"a": 1}\\nrest'
    """
    return json.dumps(head).encode() + b"\n" + body


def _main(call_fd: int, answer_fd: int) -> int:
    os.set_inheritable(call_fd, False)
    os.set_inheritable(answer_fd, False)
    # The descriptor is shared by all workers, and so is its position: read without moving it.
    data = os.pread(call_fd, os.fstat(call_fd).st_size, 0)
    os.close(call_fd)
    head, _, body = data.partition(b"\n")
    sys.path[:] = json.loads(head)["path"]
    del data

    import traceback

    import cloudpickle

    with open(answer_fd, "wb") as answer:
        try:
            function, args, kwargs = cloudpickle.loads(body)
            result = cloudpickle.dumps(function(*args, **kwargs))
        except Exception as error:
            within = error.__traceback__.tb_next if error.__traceback__ else None  # this file is no news to anyone
            text = "".join(traceback.format_exception(error.with_traceback(within)))
            try:
                shipped = cloudpickle.dumps(error.with_traceback(None))
            except Exception:
                shipped = b""
            answer.write(ANSWER_ERROR + frame({"traceback": text}, shipped))
            sys.stderr.write(text)
            return 1
        answer.write(ANSWER_RESULT + result)
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), int(sys.argv[2])))
