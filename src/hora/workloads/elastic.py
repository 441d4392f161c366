"""A run of an elastic job (`hora train … --elastic 1:4`): how it continues when workers are lost or added.

All that a run is goes into one state (``hora.torch.elastic``): model, optimizers, and where it is. It is committed
after every step and at the end of every epoch, which copies next to nothing. When the workers have changed, whoever
lacks the state gets it, each finds out which workers it plays now, the first rank keeps the run's files, and the loop
is entered again: it continues after the last committed step, as one does that continues from a checkpoint.

If nobody has the state, the run begins, or, if all workers were lost at once, continues from its newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hora.elastic.run import run_fn
from hora.engine import session
from hora.errors import EnvironmentUnfit, UsageError
from hora.torch.elastic import TorchState

if TYPE_CHECKING:
    from hora.workloads.run import TorchRun

__all__ = ["RunState", "refuse", "survive"]


def refuse(run: TorchRun) -> None:
    """Whatever an elastic job cannot do with a run."""
    options = run.options
    if options.emulate_workers:
        raise UsageError(
            f"--emulate-workers {options.emulate_workers} in an elastic job: their random numbers and statistics would "
            f"be lost with a process. Give --logical-workers {options.emulate_workers}."
        )
    if options.strategy == "ddp":
        raise UsageError("--strategy ddp in an elastic job: DDP's processes cannot change. Leave it out.")


def survive(run: TorchRun, state: RunState, loop: Callable[[], None]) -> None:
    """Call the loop; again, whenever workers were lost or have come."""
    run_fn(lambda _: loop())(state)


class RunState(TorchState):
    """The state of a run; ``place`` is all of it that is neither model nor optimizer."""

    place: dict[str, Any]

    def __init__(self, run: TorchRun, optimizers: dict[str, Any]) -> None:
        self._run = run
        super().__init__(run.model, **optimizers, place=run.place())

    def commit(self) -> None:
        self.place = self._run.place()
        super().commit()

    def check_host_updates(self) -> None:
        """Nothing: the run asks at the end of a step, with a question that all are asked anyway."""

    def leave(self) -> None:
        self._run.workers.separate()  # the state has this worker's statistics, not the mean of all
        super().leave()

    def begin(self) -> None:
        """Nobody has the state. All ranks do this together."""
        self._run.begin(anew=session.generation() == 1)
        self.place = self._run.place()

    def sync(self) -> None:
        self._run.regroup()
        super().sync()
        self._run.go_on(self.place)

    _run: TorchRun


def nothing_to_go_on_from(folder: object) -> EnvironmentUnfit:
    """All were lost before there was a checkpoint."""
    return EnvironmentUnfit(
        f"all workers were lost at once, and there is no checkpoint in {folder} yet to continue from. Start the run "
        "again; --save-every 0.1 writes checkpoints more often."
    )
