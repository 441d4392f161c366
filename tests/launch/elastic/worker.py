"""A worker of an elastic job that needs no framework: counts, adds up vectors with the others, and keeps a log.

``python worker.py STEPS [what]``. ``what`` may be ``raise`` (an exception at step 5), ``unpicklable``, ``slow``, or
``until:FILE``: slow, and epoch after epoch until that file exists.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from hora.elastic.order import taken
from hora.elastic.run import run
from hora.elastic.state import ObjectState
from hora.engine import session
from hora.engine.process_set import global_process_set
from hora.ops import host
from hora.types import ReduceOp, Reduction


class Held:
    """Can be copied, but not pickled."""

    def __deepcopy__(self, memo: object) -> Held:
        return self

    def __reduce__(self) -> str:
        raise TypeError("it stays here")


def main() -> None:
    STEPS, WHAT = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    LOG = os.environ.get("STEPS_LOG", "")
    UNTIL = WHAT.partition(":")[2]
    SAMPLES, BATCH = 12 * STEPS, 1

    session.init()
    host_name = os.environ.get("HORA_HOSTNAME", "")
    aside = " aside" * session.is_on_standby()
    print(f"up {os.getpid()} worker {os.environ.get('HORA_WORKER')} on {host_name}{aside}", flush=True)

    @run
    def train(state: ObjectState) -> None:
        print(
            f"generation {session.generation()} rank {session.rank()} of {session.size()} step {state.step}", flush=True
        )
        while not state.over:
            mine = range(state.done, SAMPLES)[session.rank() :: session.size()][:BATCH]
            ids = np.zeros(SAMPLES + 1, np.int64)
            ids[mine] = 1
            ids[SAMPLES] = session.rank() == 0 and (
                not UNTIL or os.path.exists(UNTIL)
            )  # whether to stop after this epoch
            (took,) = host.allreduce([ids], Reduction(ReduceOp.SUM), "ids", global_process_set).wait()
            state.weights = state.weights + took[:SAMPLES].sum()
            state.taken = state.taken + took[:SAMPLES]
            state.done = taken(state.done, BATCH, session.size(), SAMPLES)
            state.step += 1
            if state.done >= SAMPLES:
                state.epochs, state.done, state.over = state.epochs + 1, 0, bool(took[SAMPLES])
            if LOG:
                with open(LOG, "a") as file:
                    file.write(f"{time.time()} {session.generation()} {session.size()} {os.getpid()}\n")
            if WHAT == "raise" and state.step == 5:
                raise ValueError("this program is wrong")
            if WHAT == "slow" or UNTIL:
                time.sleep(0.02)
            state.commit()

    extra = {"held": Held()} if WHAT == "unpicklable" else {}
    state = ObjectState(
        step=0, done=0, epochs=0, over=False, taken=np.zeros(SAMPLES, np.int64), weights=np.zeros(1), **extra
    )
    train(state)
    exact = bool((state.taken == state.epochs).all())
    print(
        f"finished rank {session.rank()} exact {exact} weights {state.weights[0]:.0f} of {SAMPLES * state.epochs}",
        flush=True,
    )


if __name__ == "__main__":
    main()
