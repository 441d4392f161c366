"""Which point is next. A grid has all of them; TPE proposes one after the other, from the results of those before.

A proposal depends on the seed, its number and what is known then, and on nothing else: a sweep that was killed and goes
on proposes what it would have proposed.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from hora.errors import EnvironmentUnfit
from hora.lab.sweep.space import Choice, Dimension, Point, grid_points, value_text

__all__ = ["Grid", "Search", "Tpe", "name_of"]


class Search(Protocol):
    """What proposes points."""

    total: int

    def points(self) -> Iterator[tuple[str, Point]]:
        """A trial's name and its point, one after the other; each is answered by ``told`` before the next is asked."""

    def told(self, point: Point, value: float | None, *, hopeless: bool = False) -> None:
        """Report a point's result; None if there is none, with ``hopeless`` if the point itself is the reason."""


def name_of(point: Point) -> str:
    """A trial's name, good as a folder's.

    >>> name_of({"batch": 32, "lr": 0.1, "decay": "30,60|x"})
    'batch=32,lr=0.1,decay=30_60_x'
    """

    def safe(value: Any) -> str:
        return "".join(c if c.isalnum() or c in ".-+" else "_" for c in value_text(value))

    return ",".join(f"{name}={safe(value)}" for name, value in point.items())[:120]


class Grid:
    """All points, those with small batches first: what does not fit into memory is then known early.

    >>> search = Grid([Choice("batch", (64, 32)), Choice("lr", (0.1, 0.2))])
    >>> [name for name, _ in search.points()]
    ['batch=32,lr=0.1', 'batch=32,lr=0.2', 'batch=64,lr=0.1', 'batch=64,lr=0.2']
    """

    def __init__(self, grid: Sequence[Choice]) -> None:
        self._points = sorted(grid_points(grid), key=lambda point: point.get("batch", 0))
        self.total = len(self._points)

    def points(self) -> Iterator[tuple[str, Point]]:
        names: dict[str, int] = {}
        for point in self._points:
            name = name_of(point)
            names[name] = names.get(name, 0) + 1
            yield (name if names[name] == 1 else f"{name}-{names[name]}"), point

    def told(self, point: Point, value: float | None, *, hopeless: bool = False) -> None:
        pass


class Tpe:
    """``total`` points that the Tree-structured Parzen Estimator proposes; the first few are at random."""

    def __init__(self, space: Sequence[Dimension], total: int, *, highest: bool, seed: int) -> None:
        self._optuna = _optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        self._space, self.total, self._seed = tuple(space), total, seed
        self._study: Any = self._optuna.create_study(direction="maximize" if highest else "minimize")
        self._startup = max(3, min(10, total // 3))
        self._asked: Any = None

    def points(self) -> Iterator[tuple[str, Point]]:
        for number in range(self.total):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of options that optuna calls experimental
                self._study.sampler = self._optuna.samplers.TPESampler(
                    n_startup_trials=self._startup, seed=self._seed + number
                )
                self._asked = self._study.ask()
                point = {dimension.name: self._suggest(dimension) for dimension in self._space}
            yield f"{number + 1:04d}", point

    def _suggest(self, dimension: Dimension) -> Any:
        if isinstance(dimension, Choice):
            return self._asked.suggest_categorical(dimension.name, dimension.values)
        if dimension.whole:
            return self._asked.suggest_int(dimension.name, int(dimension.low), int(dimension.high), log=dimension.log)
        # Six digits are all that anybody types, and a record that is read back has the same number.
        value = self._asked.suggest_float(dimension.name, dimension.low, dimension.high, log=dimension.log)
        return min(max(float(f"{value:.6g}"), dimension.low), dimension.high)

    def told(self, point: Point, value: float | None, *, hopeless: bool = False) -> None:
        states = self._optuna.trial.TrialState
        if value is not None:
            self._study.tell(self._asked, value)
        else:  # a pruned one counts as bad, a failed one not at all
            self._study.tell(self._asked, state=states.PRUNED if hopeless else states.FAIL)


def _optuna() -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError:
        raise EnvironmentUnfit(
            "--tpe needs optuna, which is not installed. It proposes the points. Run \"pip install 'hora[lab]'\", or "
            "search a --grid."
        ) from None
