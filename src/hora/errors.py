"""The whole exception tree.

::

    HoraError
    ├── UsageError(ValueError)            this rank's call is wrong; raised where it was made, nothing was sent
    │   ├── NotInitializedError           also a HorovodInternalError, as Horovod's users catch it both ways
    │   ├── DuplicateNameError            the name is already in flight on this rank
    │   ├── NotMemberError                this rank is not in the process set
    │   ├── UnfinishedStepError           also an AssertionError: gradients that are under way are not to be dropped
    │   └── UnsupportedError              also a NotImplementedError: the collective does not have this operation
    ├── EnvironmentUnfit(RuntimeError)    this machine or job cannot do it (exit code 3)
    ├── HorovodInternalError(RuntimeError)    a collective failed
    │   ├── MismatchError                 the ranks disagree on what to do: a bug in the script, never retried
    │   ├── DeadlockError                 ranks wait for each other in a circle: a bug in the script, never retried
    │   ├── StallError                    a rank did not take part within the bound
    │   ├── PeerLostError                 a rank died; carries which, where and how
    │   └── ShutDownError                 Hora was shut down, here or on another rank, while this was waiting
    ├── BadData(ValueError)               a file of a data set is not what it should be
    ├── DamagedCheckpoint(ValueError)     a checkpoint is not the file that was written
    ├── NonFiniteError(ArithmeticError)   a gradient is inf or nan, and the policy is to stop
    ├── DivergenceError(RuntimeError)     the ranks' parameters are not the same any more
    ├── HostsUpdatedInterrupt(RuntimeError)   the set of hosts changed (elastic)
    └── WorkersFailed(RuntimeError)       the launcher's verdict on a job; carries the exit code to pass on

Every message has three parts: what happened, with values; why it matters; what to change.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module typing costs every worker more than all of this one
    from collections.abc import Iterable

__all__ = [
    "BadData",
    "DamagedCheckpoint",
    "DeadlockError",
    "DivergenceError",
    "DuplicateNameError",
    "EnvironmentUnfit",
    "HoraError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "MismatchError",
    "NonFiniteError",
    "NotInitializedError",
    "NotMemberError",
    "PeerLostError",
    "ShutDownError",
    "StallError",
    "UnfinishedStepError",
    "UnsupportedError",
    "UsageError",
    "WorkersFailed",
    "did_you_mean",
]


class HoraError(Exception):
    """The root of everything Hora raises on purpose."""


class UsageError(HoraError, ValueError):
    """The call itself is wrong; it was refused before anything was sent to another rank."""


class HorovodInternalError(HoraError, RuntimeError):
    """A collective failed. The name is Horovod's, because scripts catch it by that name."""


class NotInitializedError(UsageError, HorovodInternalError):
    """Something was asked of Hora before ``init()`` or after ``shutdown()``."""


class DuplicateNameError(UsageError):
    """The same name was submitted again before its first operation finished."""


class NotMemberError(UsageError):
    """This rank submitted to a process set it does not belong to."""


class UnfinishedStepError(UsageError, AssertionError):
    """Gradients were computed again or thrown away while they are being reduced; Horovod asserts that they are not."""


class UnsupportedError(UsageError, NotImplementedError):
    """This collective cannot be done with this operation. Horovod's users catch it as a RuntimeError, which it is."""


class EnvironmentUnfit(HoraError, RuntimeError):
    """The machine, the job or the installation cannot do what was asked; exit code 3."""


class BadData(HoraError, ValueError):
    """A file of a data set is missing a part, or is not what it should be. Says which file and what was found."""


class DamagedCheckpoint(HoraError, ValueError):
    """A checkpoint's file is not what the note beside it says it was."""


class MismatchError(HorovodInternalError):
    """The ranks submitted the same name with different meanings."""


class DeadlockError(HorovodInternalError):
    """Ranks wait for one another in a circle, so none of them can ever continue."""


class StallError(HorovodInternalError):
    """Some rank did not submit an operation within the allowed time."""


class PeerLostError(HorovodInternalError):
    """A rank died.

    >>> error = PeerLostError("rank 1 was killed", rank=1, host="node7", pid=4242, status="signal 9 (SIGKILL)")
    >>> error.rank, error.host, error.status
    (1, 'node7', 'signal 9 (SIGKILL)')
    """

    def __init__(self, message: str, *, rank: int = -1, host: str = "", pid: int = 0, status: str = "") -> None:
        super().__init__(message)
        self.rank, self.host, self.pid, self.status = rank, host, pid, status


class ShutDownError(HorovodInternalError):
    """Hora was shut down, on this rank or another, while the operation was waiting."""


class NonFiniteError(HoraError, ArithmeticError):
    """A gradient is inf or nan, and ``HORA_NONFINITE=stop``."""


class DivergenceError(HoraError, RuntimeError):
    """The ranks' parameters are not the same, and ``HORA_STRICT=1``."""


class HostsUpdatedInterrupt(HoraError, RuntimeError):
    """The set of hosts changed; ``skip_sync`` says that no state needs to be sent around.

    >>> HostsUpdatedInterrupt(skip_sync=True).skip_sync
    True
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts changed")
        self.skip_sync = skip_sync


class WorkersFailed(HoraError, RuntimeError):
    """A launched job failed; ``exit_code`` is the first failing worker's, for the launcher to pass on."""

    def __init__(self, message: str, *, exit_code: int = 1, rank: int | None = None) -> None:
        super().__init__(message)
        self.exit_code, self.rank = exit_code, rank


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to add to a refusal of a name that is not known: those that are like it, if any are.

    >>> did_you_mean("trian", ["train", "data"]), did_you_mean("xyz", ["train"])
    (" Did you mean 'train'?", '')
    """
    from difflib import get_close_matches

    known = list(known)
    close = get_close_matches(name, known, n=2) or [word for word in known if word.startswith(name)]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
