"""The workers that run programs: started once, on one host or two, and kept for one program after the other."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Cluster, missing_for_hosts
from tests.cluster.sshd import Sshd, missing_for_ssh
from tests.launch.jobs import clean_environment
from tests.multi.crew import Crew, Member

from hora.transport.fabric import library

LAYOUTS = ("shm", "gloo", "mpi", "hosts", "ucx")
WORKER = Path(__file__).with_name("worker.py")
START_S = 120.0
GRACE_S = 15.0  # for the others, after one has failed


class Failed(Exception):
    """A program went wrong; the text says how, rank by rank. ``lost``: the pool is of no more use."""

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


def missing_for(layout: str) -> str:
    """Why there can be no such pool here, or nothing."""
    if layout == "mpi":
        return "" if _mpirun() else "there is no mpirun"
    if layout == "ucx" and not library():
        return "UCX is not installed"
    return (missing_for_hosts() or missing_for_ssh()) if layout in ("hosts", "ucx") else ""


def _mpirun() -> str | None:
    return shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")


class Pool(Crew):
    """``size`` workers; use as a context manager. ``perform`` raises Failed."""

    def __init__(self, layout: str, size: int) -> None:
        super().__init__(size, layout, start_timeout_s=START_S)
        self._cluster: Cluster | None = None

    def _start(self, path: str) -> None:
        self._folder = Path(path).parent
        worker = [sys.executable, str(WORKER), path, str(self._folder)]
        transport = {"hosts": "auto"}.get(self.transport, self.transport)
        more = {"HORA_TRANSPORT": transport, "UCX_TLS": "tcp", "OMP_NUM_THREADS": "1"}
        hora_run = [sys.executable, "-m", "hora", "run", "-np", str(self.size)]
        options: dict[str, Any] = {"stdout": self._log, "stderr": subprocess.STDOUT, "start_new_session": True}
        if self.transport in ("hosts", "ucx"):
            self._cluster = Cluster(2, self._folder, [self._folder])
            Sshd(self._cluster)
            slots = f"h1:{-(-self.size // 2)},h2:{self.size // 2}"
            self._job = self._cluster.login.popen([*hora_run, "-H", slots, *worker], env=more, **options)
            return
        if self.transport == "mpi":
            hora_run = [_mpirun() or "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            hora_run += ["-np", str(self.size)]
        self._job = subprocess.Popen(
            [*hora_run, *worker], env=clean_environment(**more), stdin=subprocess.DEVNULL, **options
        )

    def perform(
        self,
        seed: int,
        number: int,
        *,
        timeout_s: float = 60.0,
        kept: list[int] | None = None,
        without: Sequence[str] = (),
        idle: bool = True,
        spoil: str = "",
    ) -> int:
        """Run one program on all ranks; how many operations they submitted."""
        task = {
            "seed": seed, "number": number, "size": self.size, "timeout_s": timeout_s, "kept": kept,
            "without": list(without), "idle": idle, "spoil": spoil,
            "company": self.transport == "shm",  # where agreement is by messages, every one of them would wait for it
        }  # fmt: skip
        for member in self._members:
            member.tell(**task)
        answers = self._answers(timeout_s + GRACE_S)
        if len(answers) == self.size and not any("failure" in answer for answer in answers.values()):
            wrong = [f"rank {rank}: {text}" for rank in sorted(answers) for text in answers[rank]["wrong"]]
            if wrong:
                raise Failed("wrong results:\n" + "\n".join(wrong), lost=False)
            return sum(answer["operations"] for answer in answers.values())
        self.fit = False
        raise Failed("\n".join(self._report(answers)), lost=True)

    def _answers(self, longest_wait_s: float) -> dict[int, dict[str, Any]]:
        """What the ranks say, in the order in which they do; nothing of those who have not for so long gone on."""
        waiting = {member._connection: rank for rank, member in enumerate(self._members)}
        answers: dict[int, dict[str, Any]] = {}
        failed, deadline = False, time.monotonic() + longest_wait_s
        while waiting and (left := deadline - time.monotonic()) > 0:
            for connection in select.select(list(waiting), [], [], left)[0]:
                for answer in self._heard(self._members[waiting[connection]], deadline):
                    failed = failed or "failure" in answer
                    deadline = time.monotonic() + (GRACE_S if failed else longest_wait_s)
                    if "goes_on" not in answer:
                        answers[waiting.pop(connection)] = answer
        return answers

    def _heard(self, member: Member, deadline: float) -> Iterator[dict[str, Any]]:
        """What a rank that has spoken has said."""
        more = True
        while more:
            try:
                yield member.hear(deadline) or {"failure": "It died."}
            except (TimeoutError, ConnectionError):
                yield {"failure": "It died."}
            more = b"\n" in member._heard

    def _report(self, answers: dict[int, dict[str, Any]]) -> list[str]:
        said = [f"--- rank {r} ---\n{answers[r].get('failure') or answers[r].get('wrong') or 'done'}" for r in answers]
        for rank in sorted(set(range(self.size)) - set(answers)):
            stacks = (self._folder / f"stacks.{rank}").read_text()
            said.append(f"--- rank {rank} did not answer in time ---\n{stacks or 'It did not say where it stands.'}")
        return [*said, f"--- what they printed ---\n{self.log()}"]

    def __exit__(self, *exc_info: object) -> None:
        try:
            super().__exit__(*exc_info)
        finally:
            if self._cluster is not None:
                self._cluster.close()
