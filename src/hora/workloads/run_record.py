"""What a run records while it runs: a JSON line for every step and epoch, and TensorBoard's files if wanted.

``metrics.jsonl`` is written a few times a second, in whole lines. A run that continues from a checkpoint first cuts the
file back to it, so that no step is in it twice.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import msgspec

from hora.errors import EnvironmentUnfit, UsageError
from hora.files import replacing

__all__ = ["FILE", "RunRecord", "decoded", "read_lines"]

T = TypeVar("T")

FILE = "metrics.jsonl"
_WRITE_EVERY_S = 1.0


class RunRecord:
    """The record of a run, on the rank that keeps it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with RunRecord(Path(folder)) as record:
    ...         for step in (1, 2, 3):
    ...             record.step({"step": step, "loss": 1 / step})
    ...     with RunRecord(Path(folder), after_step=2) as record:
    ...         record.step({"step": 3, "loss": 0.5})
    ...     print((Path(folder) / FILE).read_text(), end="")
    {"step":1,"loss":1.0}
    {"step":2,"loss":0.5}
    {"step":3,"loss":0.5}
    """

    def __init__(self, folder: Path, *, after_step: int = 0, tensorboard: bool = False, every: int = 1) -> None:
        """Continues after a step, forgetting what was written of later ones; after 0, begins anew. TensorBoard gets
        every few steps."""
        self._lines: list[bytes] = []
        self._encode = msgspec.json.Encoder().encode
        self._written = monotonic()
        self._every = every
        self.last_step = 0  # of which there is a line
        self._path = path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.last_step = _cut(path, after_step)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}. Give another folder with --out.") from None
        self._board: Any = _board(folder, after_step) if tensorboard else None

    def step(self, facts: Mapping[str, Any]) -> None:
        """A step is done; ``facts`` has its number as ``step``."""
        self._lines.append(self._encode(facts))
        self.last_step = facts["step"]
        if self._board is not None and facts["step"] % self._every == 0:
            self._draw(facts, "train/")
        if monotonic() - self._written > _WRITE_EVERY_S:
            self.write()

    def epoch(self, facts: Mapping[str, Any]) -> None:
        """An epoch is done."""
        self._lines.append(self._encode(facts))
        if self._board is not None:
            self._draw(facts, "epoch/")
        self.write()

    def write(self) -> None:
        """Put down what has not been yet."""
        lines, self._lines = self._lines, []
        self._written = monotonic()
        if lines:
            data = memoryview(b"\n".join([*lines, b""]))
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError as error:
                raise EnvironmentUnfit(
                    f"{self._path} cannot be written: {error.strerror}. The run ends here; what was saved before is "
                    "complete. Free some space, and continue with --resume auto."
                ) from None

    def close(self) -> None:
        if self._fd >= 0:
            self.write()
            os.close(self._fd)
            self._fd = -1
            if self._board is not None:
                self._board.close()

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self, facts: Mapping[str, Any], group: str) -> None:
        for name, value in facts.items():
            if isinstance(value, float) or (isinstance(value, int) and name == "epoch"):
                self._board.add_scalar(group + name, value, facts["step"])


def read_lines(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of a run about steps and those about epochs; none if there is no record. A line that was cut off when
    the run was killed is left out."""
    steps: list[dict[str, Any]] = []
    epochs: list[dict[str, Any]] = []
    try:
        data = (folder / FILE).read_bytes()
    except OSError:
        return steps, epochs
    for facts in decoded(data.splitlines(), dict[str, Any]):
        (epochs if "epoch_s" in facts else steps).append(facts)
    return steps, epochs


def decoded(lines: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    """Lines of JSON that are whole; what a writer that was killed has torn is left out.

    >>> list(decoded([b'{"step":1}', b'{"st'], dict[str, int]))
    [{'step': 1}]
    """
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield msgspec.json.decode(line, type=kind)


def _cut(path: Path, after_step: int) -> int:
    """Leave only lines up to that step, in whole; the last step that is left."""
    last = 0
    if not path.exists():
        return last
    with open(path, "rb") as old, replacing(path) as new:
        for line in old:
            try:
                step = msgspec.json.decode(line)["step"]
            except (msgspec.DecodeError, KeyError, TypeError):
                continue  # the last one of a run that was killed
            if step <= after_step:
                new.write(line)
                last = step
    return last


def _board(folder: Path, after_step: int) -> Any:
    try:
        writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        raise EnvironmentUnfit(
            "--tensorboard needs TensorBoard, which is not installed. Run 'pip install hora[tensorboard]', or leave it "
            "out."
        ) from None
    return writer(str(folder), purge_step=after_step + 1 if after_step else None)
