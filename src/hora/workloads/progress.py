"""How a run reports its progress: a bar on a terminal, plain lines in a log.

Rank 0 reports. Under `hora train -np N` its output passes the launcher, which draws the bar: the worker sends
its values in marked lines (``MARK``), and the launcher's ``ProgressListener`` picks them out.
"""

from __future__ import annotations

import base64
import logging
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from hora.config import env
from hora.text import count_text

__all__ = [
    "MARK",
    "NoProgress",
    "ProgressBar",
    "ProgressLines",
    "ProgressListener",
    "ProgressMarks",
    "ProgressReporter",
    "ProgressState",
    "can_draw",
    "decode",
    "duration",
    "encode",
    "launcher_draws",
    "progress_reporter",
    "the_end",
]

MARK = b"\x1ehora "  # begins a line that is for the launcher: what ``encode`` makes of a state
_REDRAW_S = 0.2
_SAY_EVERY_S = 60.0
_WIDE = 110  # columns of a terminal that has room for a bar besides the figures
_draws = False
_log = logging.getLogger("hora")


class ProgressState(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell after a step."""

    epoch: int
    epochs: float
    step: int  # of the epoch
    steps: int
    done: float  # of the whole run, from 0 to 1
    lr: float
    images_per_s: float
    left_s: float
    metrics: dict[str, float] = {}

    def text(self) -> str:
        """
        >>> ProgressState(epoch=0, epochs=40, step=100, steps=300, done=0.1, lr=2e-4, images_per_s=5432.1, left_s=75,
        ...       metrics={"loss": 0.25, "accuracy": 0.9375}).text()
        'epoch 1/40  step 100/300  loss 0.2500  accuracy 93.75 %  5,432 images/s  lr 0.0002  ETA 1:15'
        """
        speed = f"{count_text(self.images_per_s)} images/s  lr {self.lr:.6g}  ETA {duration(self.left_s)}"
        return "  ".join([self._place(), *metrics_text(self.metrics), speed])

    def short(self, width: int) -> str:
        """The same for a bar, with as many of the metrics as there is room for.

        >>> state = ProgressState(epoch=0, epochs=40, step=100, steps=300, done=0.1, lr=2e-4, images_per_s=5432.1,
        ...     left_s=75,
        ...               metrics={"loss": 0.25, "accuracy": 0.9375})
        >>> state.short(90)
        'epoch 1/40  step 100/300  loss 0.2500  accuracy 93.75 %  5,432 images/s  ETA 1:15'
        >>> state.short(70)
        'epoch 1/40  step 100/300  loss 0.2500  5,432 images/s  ETA 1:15'
        """
        speed = f"{count_text(self.images_per_s)} images/s  ETA {duration(self.left_s)}"
        metrics = metrics_text(self.metrics)
        while len(text := "  ".join([self._place(), *metrics, speed])) > width and metrics:
            metrics.pop()
        return text

    def _place(self) -> str:
        return f"epoch {self.epoch + 1}/{math.ceil(self.epochs)}  step {self.step}/{self.steps}"


def metrics_text(metrics: dict[str, float]) -> list[str]:
    """
    >>> metrics_text({"val_loss": 0.05, "val_accuracy": 0.99})
    ['val_loss 0.0500', 'val_accuracy 99.00 %']
    """
    return [f"{k} {v:.2%}".replace("%", " %") if _is_share(k) else f"{k} {v:.4f}" for k, v in metrics.items()]


def the_end(
    steps: int, seconds: float, images_per_s: float, metrics: dict[str, float], checkpoint: str, folder: str
) -> str:
    """What a run says last.

    >>> print(the_end(300, 75.2, 5432.1, {"val_accuracy": 0.99}, "runs/mnist/epoch-0001.pt", "runs/mnist"))
    Done: 300 steps in 1:15, 5,432 images/s, val_accuracy 99.00 %.
    Checkpoint: runs/mnist/epoch-0001.pt, record: runs/mnist/run.json.
    Next: hora lab report runs/mnist
    """
    told = {name: value for name, value in metrics.items() if name.count("_") < 3}  # not the parts of a loss
    figures = [f"{steps:,} steps in {duration(seconds)}", f"{count_text(images_per_s)} images/s", *metrics_text(told)]
    files = [*([f"checkpoint: {checkpoint}"] if checkpoint else []), f"record: {folder}/run.json"]
    where = ", ".join(files)
    return f"Done: {', '.join(figures)}.\n{where[0].upper()}{where[1:]}.\nNext: hora lab report {shlex.quote(folder)}"


def _is_share(name: str) -> bool:
    return name.endswith(("accuracy", "top5"))


def duration(seconds: float) -> str:
    """
    >>> duration(75), duration(7322), duration(float("inf"))
    ('1:15', '2:02:02', '?')
    """
    if not seconds < 1e8:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def encode(state: ProgressState) -> bytes:
    """A marked line. Not JSON, which has no infinity (the time left before the first steps) and no nan (a loss).

    >>> decode(encode(ProgressState(epoch=0, epochs=1, step=1, steps=2, done=0, lr=0.1, images_per_s=0,
    ...     left_s=float("inf"))))
    ProgressState(epoch=0, epochs=1.0, step=1, steps=2, done=0.0, lr=0.1, images_per_s=0.0, left_s=inf, metrics={})
    """
    return MARK + base64.b64encode(msgspec.msgpack.encode(state)) + b"\n"


def decode(line: bytes) -> ProgressState | None:
    """The state in a marked line; None if it is torn, as lines of a worker that was killed are."""
    try:
        return msgspec.msgpack.decode(base64.b64decode(line.removeprefix(MARK), validate=False), type=ProgressState)
    except (ValueError, msgspec.DecodeError):
        return None


class ProgressReporter(Protocol):
    """What reports progress."""

    def step(self, state: Callable[[], ProgressState], number: int) -> None:
        """Step ``number`` of the run is done."""

    def say(self, text: str) -> None:
        """A line of its own."""

    def close(self) -> None: ...


class NoProgress:
    """Says nothing of steps; other lines are printed."""

    def step(self, state: Callable[[], ProgressState], number: int) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        pass


class ProgressLines(NoProgress):
    """A line every few steps, and where these take long every so often."""

    def __init__(self, every: int) -> None:
        self._every, self._said = every, time.monotonic()

    def step(self, state: Callable[[], ProgressState], number: int) -> None:
        if number % self._every == 0 or time.monotonic() - self._said >= _SAY_EVERY_S:
            self._said = time.monotonic()
            self.say(state().text())


class _Drawn(NoProgress):
    """A state that is drawn a few times a second."""

    _last = 0.0

    def step(self, state: Callable[[], ProgressState], number: int) -> None:
        now = time.monotonic()
        if now - self._last >= _REDRAW_S:
            self._last = now
            self.draw(state())

    def draw(self, state: ProgressState) -> None:
        """Draw it as it is now."""
        raise NotImplementedError


class ProgressMarks(_Drawn):
    """Marked lines for the launcher."""

    def draw(self, state: ProgressState) -> None:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), encode(state))


class ProgressBar(_Drawn):
    """A bar that is drawn in its place."""

    def __init__(self, stream: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

        console = Console(file=stream, highlight=False, markup=False)
        columns: list[ProgressColumn] = [TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.description}")]
        self._room = console.width - 6  # after the percentage
        if console.width >= _WIDE:
            columns.insert(0, BarColumn(bar_width=20))
            self._room -= 21
        self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=1.0)
        self._progress.start()

    def draw(self, state: ProgressState) -> None:
        self._progress.update(self._task, completed=state.done, description=state.short(self._room), refresh=True)

    def say(self, text: str) -> None:
        self._progress.console.print(text)

    def close(self) -> None:
        self._progress.stop()


@contextmanager
def launcher_draws() -> Iterator[None]:
    """Inside, rank 0 sends marks for the launcher instead of telling itself."""
    global _draws
    _draws = True
    try:
        yield
    finally:
        _draws = False


def progress_reporter(every: int, quiet: bool = False) -> ProgressReporter:
    """The reporter of this process: none for steps if ``quiet``; else a bar, or in a log a line every few steps."""
    if quiet:
        return NoProgress()
    if _draws:
        return ProgressMarks()
    return ProgressBar() if can_draw() else ProgressLines(every)


def can_draw() -> bool:
    """Whether standard output is a terminal that can be drawn on; one that cannot gets lines, as a log does."""
    return sys.stdout.isatty() and env.environ().get("TERM", "dumb") not in ("dumb", "unknown")


class ProgressListener:
    """The launcher's side: what workers print, with marks taken out and drawn, and without a prefix for rank 0.

    >>> import io
    >>> out = io.BytesIO()
    >>> listener = ProgressListener(out.write, None)
    >>> listener(b"[0]<stdout>:epoch 1\\n[1]<stdout>:hello\\n")
    >>> out.getvalue()
    b'epoch 1\\n[1]<stdout>:hello\\n'

    A bar that cannot be drawn is given up; what workers print is not.
    """

    _OWN = b"[0]<stdout>:"
    _ANY = re.compile(rb"\[\d+\]<stdout>:(?=" + re.escape(MARK) + rb")")  # in an elastic job others may draw

    def __init__(self, write: Callable[[bytes], Any], bar: ProgressBar | None) -> None:
        self._write, self._bar = write, bar

    def __call__(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            text = self._ANY.sub(b"", line.removeprefix(self._OWN), count=1)
            if not (self._drawn(text) or text.startswith(MARK)):
                self._write(text)

    def _drawn(self, text: bytes) -> bool:
        """Draw a mark, or print a line above the bar; False if there is no bar for it."""
        if self._bar is None:
            return False
        try:
            if not text.startswith(MARK):
                self._bar.say(text.decode("utf-8", "replace").rstrip("\n"))
            elif (state := decode(text)) is not None:
                self._bar.draw(state)
            return True
        except OSError:
            raise  # the terminal is gone
        except Exception:
            _log.warning("the progress bar is given up: it could not be drawn", exc_info=True)
            self._bar = None
            return False
