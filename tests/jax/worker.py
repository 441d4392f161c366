"""One rank of a crew of ``hora.jax``. ``python -m tests.jax.worker SOCKET``.

On shared memory torch cannot be imported: the front-end must work without it. Three workers share one core, where a
client that computes and calls back on the same few threads is most likely to wait for itself.
"""

from __future__ import annotations

import os
import sys

from tests.keras.surroundings import XLA_FLAGS

EVERYWHERE, ONCE = (("shm", 1), ("shm", 2), ("shm", 3), ("gloo", 2)), (("shm", 2),)
# Where the bodies of each subject run; those that only use collectives which others try everywhere, once.
SUBJECTS = {
    "collectives": EVERYWHERE,
    "mistakes": ONCE,
    "surface": (("shm", 1),),
    "training": ONCE,
    "transforms": EVERYWHERE[1:3],
}
MODULES = [f"tests.jax.bodies.{subject}" for subject in SUBJECTS]


def main(path: str) -> None:
    if os.environ["HORA_TRANSPORT"] == "shm":
        sys.modules["torch"] = None  # type: ignore[assignment]
    if os.environ["HORA_SIZE"] == "3":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = XLA_FLAGS
    from tests.multi.serve import bodies_in, serve

    import hora.jax as hvd

    serve(path, hvd, bodies_in(*MODULES), lambda rank: None)


if __name__ == "__main__":
    main(sys.argv[1])
