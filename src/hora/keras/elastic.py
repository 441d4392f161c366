"""Elastic training with Keras, on any backend: a model's state, and callbacks that keep it up to date in ``model.fit``.

``CommitStateCallback`` calls the state's ``commit()``, the others set its ``batch`` and ``epoch``. In the list of
callbacks ``CommitStateCallback`` comes last, so that it commits what the others have set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hora.elastic import run as elastic_run
from hora.elastic.model import ModelState
from hora.errors import UsageError
from hora.keras.adapter import to_numpy

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that trains with a state, so that it goes on when workers are lost or come."""
    return elastic_run.run(elastic_run.unwrapping(func))


class KerasState(ModelState):
    __doc__ = ModelState.__doc__

    @staticmethod
    def _to_array(variable: Any) -> Any:
        return np.array(to_numpy(variable))


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state every so many batches, and at the end of every epoch.

    Args:
        state: An object with ``commit()``.
        batches_per_commit: How many batches lie between commits. More is cheaper, and loses more if a worker is lost.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise UsageError(
                f"CommitStateCallback: batches_per_commit={batches_per_commit}. It is how many batches lie between"
                " commits. Give a whole number from 1."
            )
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.batches_remaining = self.batches_per_commit  # the same on all ranks, also on one that joined later

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self._commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._commit()

    def _commit(self) -> None:
        self.model  # noqa: B018  # on JAX this brings what was trained back into the model's variables
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps ``state.batch`` at the number of batches of this epoch that are done; 0 when the epoch is.

    Horovod has the number of the last batch there, and a job that goes on from it repeats that one.

    Args:
        state: An object with an attribute ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self._before = state, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._before = self.state.batch  # done of this epoch by an earlier fit

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps ``state.epoch`` at the number of epochs that are done, over all calls of ``fit``.

    It does not matter whether a ``fit`` that goes on counts from 0 (``epochs=24 - state.epoch``) or from where it is
    (``initial_epoch=state.epoch``).

    Args:
        state: An object with an attribute ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self._ahead = state, 0
        self._counting = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._counting = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._counting:
            self._ahead, self._counting = self.state.epoch - epoch, True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch = self._ahead + epoch + 1
