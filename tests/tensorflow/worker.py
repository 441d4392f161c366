"""One rank of a crew of ``hora.tensorflow``. ``python -m tests.tensorflow.worker SOCKET``.

On shared memory torch cannot be imported: the front-end must work without it. TensorFlow has one thread for operations,
which is the hardest case for collectives that wait.
"""

from __future__ import annotations

import os
import sys

SUBJECTS = ("collectives", "gradients", "graphs", "mistakes", "sessions", "surface", "training")
MODULES = [f"tests.tensorflow.bodies.{subject}" for subject in SUBJECTS]


def main(path: str) -> None:
    if os.environ["HORA_TRANSPORT"] == "shm":
        sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    from tests.multi.serve import bodies_in, serve

    import hora.tensorflow as hvd

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    serve(path, hvd, bodies_in(*MODULES), tf.random.set_seed)


if __name__ == "__main__":
    main(sys.argv[1])
