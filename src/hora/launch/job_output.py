"""What workers print, wherever they run: on the console, in files, and the last of it kept for a report.

Owns the pump (the one thread that writes to the console), the files of ``--output-filename`` and the tails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import BinaryIO

from hora.errors import EnvironmentUnfit
from hora.launch import output
from hora.launch.host.pump import Pump
from hora.launch.job import Job

__all__ = ["JobOutput"]


class JobOutput:
    """The output of one job. Streams are "stdout", "stderr" and "answer"; an empty piece of data ends a stream."""

    def __init__(self, job: Job, on_broken: Callable[[], None]) -> None:
        self._job = job
        self._pump = Pump(on_broken)
        self._streams: dict[tuple[int, str], output.WorkerStream] = {}
        self._errors: dict[int, output.WorkerStream] = {}
        self.tails = {worker.rank: output.Tail() for worker in job.plan.workers}

    def open(self) -> None:
        """Open the files; nothing is started if that fails. Then output may come."""
        files = self._open_files(list(self.tails))
        for rank in self.tails:
            self._open_streams(rank, files)
        self._pump.start()

    def add_worker(self, rank: int) -> None:
        """One more worker than the plan has; its output may come from now on."""
        files = self._open_files([rank])
        self.tails[rank] = output.Tail()
        self._open_streams(rank, files)

    def _open_streams(self, rank: int, files: dict[tuple[int, str], BinaryIO]) -> None:
        for name in ("stdout", "stderr"):
            stream = self._streams[rank, name] = output.WorkerStream(
                name,
                rank,
                getattr(self._job.console, name),
                self.tails[rank],
                prefix=self._job.prefix,
                timestamp=self._job.timestamp,
                file=files.get((rank, name)),
                keep_back=self._pump.keep_back if name == "stderr" and self._job.keep_last_words else None,
                hush=name == "stderr" and self._job.filter_tensorflow,
            )
        self._errors[rank] = stream

    def take_pipe(self, rank: int, name: str, fd: int) -> None:
        """Read a stream from a pipe to its end; the record owns it from now on."""
        if name == "answer":
            self._pump.add(fd, partial(self._job.on_answer, rank))
        else:
            stream = self._streams.pop((rank, name))
            self._pump.add(fd, stream.take, stream.close)

    def take_foreign_pipe(self, fd: int, take: Callable[[bytes], None], close: Callable[[], None]) -> None:
        """Read a pipe that is no worker's, in the same thread that writes to the console."""
        self._pump.add(fd, take, close)

    def put(self, rank: int, name: str, data: bytes, then: Callable[[], None] = lambda: None) -> None:
        """A piece of a stream that was read elsewhere. ``then`` is called, in another thread, once it is written."""
        stream = self._streams.get((rank, name))
        if name == "answer":
            self._pump.put(partial(self._job.on_answer, rank, data))
        elif stream is not None:
            self._pump.put(partial(stream.take, data) if data else stream.close)
            if not data:
                del self._streams[rank, name]
        self._pump.put(then)

    def close(self) -> None:
        """Write what is left, and close everything."""
        if self._pump.ident is None:  # it was never opened
            self._pump.start()
        for stream in self._streams.values():
            self._pump.put(stream.close)
        self._pump.finish()

    def last_words(self) -> dict[int, bytes]:
        """The output that was held back and not shown yet, by rank. After ``close``."""
        return {rank: stream.last_words for rank, stream in self._errors.items() if stream.last_words}

    def _open_files(self, ranks: Sequence[int]) -> dict[tuple[int, str], BinaryIO]:
        directory = self._job.output_directory
        if directory is None:
            return {}
        files: dict[tuple[int, str], BinaryIO] = {}
        try:
            for rank in ranks:
                folder = output.rank_directory(directory, rank, self._job.plan.size)
                folder.mkdir(parents=True, exist_ok=True)
                for name in ("stdout", "stderr"):
                    files[rank, name] = open(folder / name, "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            for file in files.values():
                file.close()
            raise EnvironmentUnfit(
                f"{error.filename!r} cannot be written: {error.strerror}. Nothing was started, because the output "
                "would be lost. Give --output-filename a directory that can be written."
            ) from error
        return files
