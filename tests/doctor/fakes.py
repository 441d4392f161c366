"""A machine that a test makes up: files under a directory of its own, and answers to commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hora.doctor.machine import CommandResult, Disk, Interface, Machine


class FakeMachine(Machine):
    """``answers`` maps part of a command to how it went; a program is on the path if it is in ``programs``."""

    def __init__(self, root: Path, np: int = 2, **environ: str) -> None:
        super().__init__(environ, np=np, root=root)
        self.answers: dict[str, CommandResult] = {}
        self.programs: set[str] = set()
        self.disks: dict[str, Disk] = {}
        self.links: Sequence[Interface] = ()
        self.commands: list[str] = []

    def put(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def answer(self, part: str, code: int | None = 0, out: str = "", err: str = "", seconds: float = 0.1) -> None:
        self.answers[part] = CommandResult(code, out, err, seconds)

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.programs else None

    def disk(self, path: str) -> Disk | None:
        return self.disks.get(path)

    def interfaces(self) -> Sequence[Interface]:
        return self.links

    def run(
        self, command: Sequence[str], deadline_s: float, *, env: Mapping[str, str] | None = None, text: str = ""
    ) -> CommandResult:
        line = " ".join(command)
        self.commands.append(line)
        return next(
            (ran for part, ran in self.answers.items() if part in line), CommandResult(127, "", "not found", 0.0)
        )
