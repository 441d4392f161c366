"""One rank of a crew of ``hora.mxnet``, in MXNet's own environment. ``python -m tests.mxnet.worker SOCKET``."""

from __future__ import annotations

import sys

MODULES = ["tests.mxnet.bodies"]


def main(path: str) -> None:
    import mxnet as mx
    from tests.multi.serve import bodies_in, serve

    import hora.mxnet as hvd

    serve(path, hvd, bodies_in(*MODULES), mx.random.seed)


if __name__ == "__main__":
    main(sys.argv[1])
