"""Faults, counted: real processes are stopped and killed at random moments, and each time one right sentence must come.

Every function yields a ``Round`` a fault; what went wrong in it are its ``misses``. Used by the tests, a few at a time,
and by ``python -m tests.chaos``, in hundreds.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.chaos.worker import HOLDER, LOOKS, STEP, board_in
from tests.launch.jobs import processes_of, run_hora, start_hora, wait_until

WORKER = Path(__file__).with_name("worker.py")
WARN_S, FAIL_S = 0.5, 2.0  # the stall bounds of these jobs
LOOK_S = 1.0  # the monitor begins to look after 0.3 s and looks four times a second
DEATH_S = 1.0  # from a death to the exception on every other rank
MARGIN_S = 4.0  # for a machine that does something else as well
START_S = 180.0


class Round(NamedTuple):
    """One fault: what was done, how long it took until everybody had said what it should, and what was wrong.
    ``outcome`` is which of several right ends it had, where there are several."""

    what: str
    seconds: float
    said: str = ""
    misses: tuple[str, ...] = ()
    outcome: str = ""


class Job:
    """``hora run`` of the looping worker; a thread reads what its workers say, so every wait has a deadline."""

    def __init__(self, size: int, transport: str = "shm", fail_s: float = FAIL_S) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder, self.size = Path(self._folder.name), size
        self.board: Any = board_in(self.folder)
        self.process = start_hora(
            "run", "-np", str(size), sys.executable, WORKER, "loop", self.folder, HORA_TRANSPORT=transport,
            HORA_STALL_CHECK_TIME_SECONDS=str(WARN_S), HORA_STALL_SHUTDOWN_TIME_SECONDS=str(fail_s),
        )  # fmt: skip
        self.lines: list[str] = []
        self._words: queue.Queue[dict[str, Any]] = queue.Queue()
        self.raised: dict[int, dict[str, Any]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pids: dict[int, int] = {}
        self.job, self.stopped = "", 0.0

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if (found := re.search(r'\{"(ready|rank)".*\}', line)) and "|" not in line[: found.start()]:
                self._words.put(json.loads(found[0]))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()  # type: ignore[union-attr]
        self._folder.cleanup()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def hear(self, wanted: set[int], deadline_s: float) -> bool:
        """Until these ranks have raised; whether they did. Whoever has raised meanwhile is noted too."""
        end = time.monotonic() + deadline_s
        while not wanted <= self.raised.keys() or not self._words.empty():
            try:
                word = self._words.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return False
            if "ready" in word:
                self.pids[word["ready"]] = word["pid"]
            else:
                self.raised[word["rank"]] = word
        return True

    def ready(self) -> None:
        """Until all of them reduce."""
        end = time.monotonic() + START_S
        while len(self.pids) < self.size:
            assert time.monotonic() < end and self.process.poll() is None, f"the job did not start: {self.output}"
            with contextlib.suppress(queue.Empty):
                word = self._words.get(timeout=0.1)
                if "raised" in word:
                    raise TooLong(word["text"])
                self.pids[word["ready"]] = word["pid"]
        environment = Path(f"/proc/{self.pids[0]}/environ").read_bytes().split(b"\0")
        self.job = next(e for e in environment if e.startswith(b"HORA_JOB=")).decode().partition("=")[2]
        assert self.goes_on(START_S), f"the job did not begin: {self.output}"

    def goes_on(self, deadline_s: float) -> bool:
        """Whether every rank makes three more steps."""
        goal, end = self.board[: self.size, STEP].max() + 3, time.monotonic() + deadline_s
        while (self.board[: self.size, STEP] < goal).any() and time.monotonic() < end:
            time.sleep(0.001)
        return bool((self.board[: self.size, STEP] >= goal).all())

    def stop(self, rank: int) -> bool:
        """Stop it; whether it was inside the table's lock, as the others see it."""
        self.stopped = time.monotonic()
        os.kill(self.pids[rank], signal.SIGSTOP)
        stat = Path(f"/proc/{self.pids[rank]}/stat")
        wait_until(
            lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 10.0, "the rank to be stopped", 0.0005
        )
        if not self.board[:, LOOKS].any():
            return False  # there is no table
        row = self.board[(rank + 1) % self.size]
        goal = row[LOOKS] + 2
        wait_until(lambda: row[LOOKS] >= goal, 10.0, "another rank to look at the lock", 0.0005)
        return bool(row[HOLDER] == rank)

    def resume(self, rank: int) -> None:
        os.kill(self.pids[rank], signal.SIGCONT)

    def ends(self) -> Iterator[str]:
        """Let it end; yields what is wrong with how it does."""
        (self.folder / "end").touch()
        try:
            self.process.wait(timeout=30)
            self._reader.join(10)
        except Exception as error:
            yield f"the job did not end: {error}"
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not processes_of(self.job), 10.0)
        if left := processes_of(self.job):
            yield f"left running: {left}"


def busy_wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def stops(count: int, seed: int, transport: str = "shm", in_lock: bool = False) -> Iterator[Round]:
    """Every other stop is over before the bound: all goes on, with right sums. The next lasts: the others name that
    rank, and when it runs again it is told, and leaves. ``in_lock``: only stops inside the table's lock count."""
    for trial in range((count + 1) // 2):
        dice = random.Random(seed * 1_000_003 + trial)
        for _ in range(10):
            with Job(dice.choice([2, 3, 4]), transport) as job, contextlib.suppress(TooLong):
                job.ready()
                found = [_short_stop(job, dice, in_lock)] if 2 * trial + 1 < count else []
                found.append(_long_stop(job, dice, in_lock))
                yield from found
                break


class TooLong(Exception):
    """This machine was so busy that a rank which was to go on in time did not: that is no round."""


def _stop_somewhere(job: Job, dice: random.Random, in_lock: bool) -> tuple[int, bool]:
    for _ in range(2000):
        victim = dice.randrange(job.size)
        busy_wait(dice.random() * 0.03)
        held = job.stop(victim)
        if held or not in_lock:
            return victim, held
        job.resume(victim)
        if job.hear(set(), 0.0) and job.raised:
            raise TooLong
    raise AssertionError("2000 stops, and none was inside the lock")


def _short_stop(job: Job, dice: random.Random, in_lock: bool) -> Round:
    victim, held = _stop_somewhere(job, dice, in_lock)
    busy_wait(dice.random() * 0.4 * FAIL_S)
    job.resume(victim)
    resumed = time.monotonic()
    if resumed - job.stopped > 0.75 * FAIL_S:
        raise TooLong
    misses = [] if job.goes_on(10 + MARGIN_S) else ["not everybody goes on"]
    job.hear(set(), 0.0)
    if job.raised or job.process.poll() is not None:
        misses.append(f"the job ended: {job.output}")
    return Round(_stopped(victim, job, held, "and on"), time.monotonic() - resumed, "all went on", tuple(misses))


def _long_stop(job: Job, dice: random.Random, in_lock: bool) -> Round:
    victim, held = _stop_somewhere(job, dice, in_lock)
    stopped, misses = job.stopped, list[str]()
    others, bound = set(range(job.size)) - {victim}, FAIL_S + LOOK_S + MARGIN_S
    if not job.hear(others, bound + 5):
        misses.append(f"only ranks {sorted(job.raised)} raised within {bound + 5:g} s")
    named = rf"rank {victim} \(host \w+, pid {job.pids[victim]}\) died: it has not answered for \d+ s"
    for rank in others & job.raised.keys():
        word = job.raised[rank]
        if word["raised"] != "PeerLostError" or not re.match(named, word["text"]):
            misses.append(f"rank {rank} raised {word['raised']}: {word['text']}")
        if word["at"] - stopped > bound:
            misses.append(f"rank {rank} raised after {word['at'] - stopped:.1f} s")
    seconds = max((job.raised[rank]["at"] for rank in others & job.raised.keys()), default=stopped) - stopped
    resumed = time.monotonic()
    job.resume(victim)
    told = rf"'allreduce\.\w+' cannot be done: the others have given rank {victim} up: it has not answered for \d+ s"
    if not job.hear({victim}, DEATH_S + MARGIN_S):
        misses.append(f"rank {victim} runs again, and said nothing within {DEATH_S + MARGIN_S:g} s")
    elif (word := job.raised[victim])["raised"] != "ShutDownError" or not re.match(told, word["text"]):
        misses.append(f"rank {victim} runs again, and raised {word['raised']}: {word['text']}")
    elif word["at"] - resumed > DEATH_S + MARGIN_S:
        misses.append(f"rank {victim} was told after {word['at'] - resumed:.1f} s")
    misses += job.ends()
    if job.process.returncode != 3:
        misses.append(f"exit code {job.process.returncode}, not the workers' 3")
    said = job.raised[min(others)]["text"].partition("\n")[0] if others & job.raised.keys() else "nothing"
    return Round(_stopped(victim, job, held, "for good"), seconds, said, tuple(misses))


def _stopped(victim: int, job: Job, held: bool, then: str) -> str:
    return f"rank {victim} of {job.size} stopped{' in the lock' if held else ''}, {then}"


def kills(count: int, seed: int, transport: str = "shm") -> Iterator[Round]:
    """Survivors name the rank, its process and the signal; nothing is left."""
    for trial in range(count):
        dice = random.Random(seed * 1_000_003 + trial)
        size, misses = dice.choice([2, 3, 4]), list[str]()
        with Job(size, transport, fail_s=60.0) as job:  # a death is seen, not timed
            job.ready()
            (job.folder / "end").touch()  # who fails leaves at once
            victim = dice.randrange(size)
            busy_wait(dice.random() * 0.03)  # the moment of death is what is random here
            killed = time.monotonic()
            os.kill(job.pids[victim], signal.SIGKILL)
            others = set(range(size)) - {victim}
            if not job.hear(others, DEATH_S + MARGIN_S + 5):
                misses.append(f"only ranks {sorted(job.raised)} raised")
            named = f"rank {victim} (host localhost, pid {job.pids[victim]}) died: signal 9 (SIGKILL)"
            for rank in others & job.raised.keys():
                word = job.raised[rank]
                if word["raised"] != "PeerLostError" or not word["text"].startswith(named):
                    misses.append(f"rank {rank} raised {word['raised']}: {word['text']}")
                if word["at"] - killed > DEATH_S + MARGIN_S:
                    misses.append(f"rank {rank} raised after {word['at'] - killed:.1f} s")
            misses += job.ends()
            if job.process.returncode != 128 + signal.SIGKILL:
                misses.append(f"exit code {job.process.returncode}, not {128 + signal.SIGKILL}")
            if f"rank {victim} failed first" not in job.output:
                misses.append(f"the launcher did not say that rank {victim} failed first: {job.output}")
            seconds = max((job.raised[rank]["at"] for rank in others & job.raised.keys()), default=killed) - killed
        yield Round(f"rank {victim} of {size} killed", seconds, f"{named}.", tuple(misses))


def joins(count: int, seed: int, transport: str = "shm", size: int = 4) -> Iterator[Round]:
    """``count`` joins of ``size`` workers with uneven epochs and a thread that keeps the GIL; every sum is checked."""
    began = time.monotonic()
    epochs = -(-count // size)
    done = run_hora(
        "run", "-np", str(size), sys.executable, WORKER, "joins", str(epochs), str(seed), timeout_s=60 + 2.0 * epochs,
        HORA_TRANSPORT=transport,
    )  # fmt: skip
    words = [json.loads(found[0]) for found in re.finditer(r'\{"rank".*\}', done.stdout)]
    misses = [f"rank {word['rank']}: {word['wrong']}" for word in words if "wrong" in word]
    if done.returncode != 0 or sum(word.get("joins", 0) for word in words) != epochs * size:
        misses.append(f"exit code {done.returncode}: {done.stdout}{done.stderr}")
    sums, slowest = sum(w.get("sums", 0) for w in words), max((w.get("slowest", 0.0) for w in words), default=0.0)
    said = f"{sums} sums, all right; the slowest join took {slowest:.1f} s"
    yield Round(f"{epochs * size} joins of {size} workers", time.monotonic() - began, said, tuple(misses))


def crowd() -> Iterator[Round]:
    """256 simulated workers on one hub, one of them late: the others are told who is missing, and then go on."""
    from tests.engine.test_hub import test_256_workers_of_which_one_is_late_with_300_operations as body

    began, misses = time.monotonic(), list[str]()
    try:
        body()
    except Exception as error:
        misses.append(f"{type(error).__name__}: {error}")
    said = "255 workers were told that rank 255 is missing; then it came, and all 300 operations went on"
    yield Round("256 workers, one late", time.monotonic() - began, said, tuple(misses))


def percentile(seconds: list[float], part: float) -> float:
    return float(np.quantile(seconds, part)) if seconds else 0.0
