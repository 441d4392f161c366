"""What a job script and its submission need to know of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hora.launch.submit.order import BatchJob

__all__ = ["Scheduler"]


class Scheduler(Protocol):
    """One kind of scheduler. The strings are bash, put into the script as they are."""

    name: str
    program: str  # that submits
    suffix: str  # of scripts
    job_id: str
    job_name: str
    node_list: str
    array_task: str
    restarts: str  # how often this job was put back into the queue

    def check(self, order: BatchJob) -> None:
        """Refuse what this scheduler cannot do."""

    def head(self, order: BatchJob) -> list[str]:
        """The directives."""

    def arrive(self, order: BatchJob) -> list[str]:
        """What comes before everything else in the script."""

    def once_per_node(self, order: BatchJob) -> list[str]:
        """A function of that name, which runs its arguments once on each node and fails if any of them does."""

    def launch(self, order: BatchJob) -> str:
        """What to put before the command, nothing if that starts its workers itself; if the scheduler sends no warning
        in time, it does."""

    def requeue(self, order: BatchJob, script: str) -> list[str]:
        """Put this job back into the queue."""

    def submission(self, order: BatchJob, script: str, job: int, after: str | None) -> Sequence[str]:
        """The command that submits job number ``job`` of a chain, to start after the job ``after``."""

    def read_id(self, said: str) -> str:
        """The job's id, out of what that command printed; "" if it is not there."""

    def cancel(self, ids: Sequence[str]) -> str:
        """The command that takes jobs back, to be shown."""
