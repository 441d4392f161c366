"""A cluster of shell scripts: stand-ins for what a job script calls, which write down how they were called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hora.launch.submit import SCHEDULERS, BatchJob, render

TIMEOUT_S = 30.0
# Each record ends with a record separator and a newline; words end with a unit separator. No test uses these in words.
RECORD = 'printf "%s\\037" "$@" >>"$RECORDS/{name}"; printf "\\036\\n" >>"$RECORDS/{name}"\n'
# Runs its command on two "nodes", with a folder each in the place of /tmp.
SRUN = r"""
while [[ $1 == --* ]]; do shift; done
export HOSTNAME=login  # as a profile may have it, and srun passes on
for SLURMD_NODENAME in h1 h2; do
    export SLURMD_NODENAME
    words=("${@//\/NODE\///$SLURMD_NODENAME/}")
    "${words[@]}" || exit $?
done
"""
HORA = 'if [[ -n ${HORA_STUB:-} ]]; then source "$HORA_STUB"; fi\n'


class Stubs:
    """A folder of programs to put on PATH; ``calls`` tells what was called with what."""

    def __init__(self, place: Path) -> None:
        self.programs, self.records = place / "bin", place / "records"
        self.programs.mkdir(parents=True)
        self.records.mkdir()
        self.add("hora", HORA)
        self.add("srun", SRUN)
        self.add("python3", "cat >/dev/null\n")
        for name in ("scontrol", "qsub", "module"):
            self.add(name, "")

    def add(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text("#!/bin/bash\n" + RECORD.format(name=name) + body)
        path.chmod(0o755)

    def calls(self, name: str) -> list[list[str]]:
        path = self.records / name
        text = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""
        return [call.split("\x1f") for call in text.removesuffix("\x1f\x1e\n").split("\x1f\x1e\n")] if text else []

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "x", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_JOB_NUM_NODES": "2"}
        return {"PATH": path, "RECORDS": str(self.records), "HOME": "/", **slurm, **more}

    def start(self, script: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
        (cwd / "job.sh").write_text(script, encoding="utf-8", errors="surrogateescape")
        return subprocess.Popen(
            ["bash", "job.sh"], cwd=cwd, env=self.environment(**environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="surrogateescape",
        )  # fmt: skip

    def run(self, script: str, cwd: Path, **environment: str) -> tuple[int, str]:
        job = self.start(script, cwd, **environment)
        try:
            said, _ = job.communicate(timeout=TIMEOUT_S)
        finally:
            job.kill()
        return job.returncode, said


def script_of(order: BatchJob, scheduler: str = "slurm") -> str:
    return render(order, SCHEDULERS[scheduler], "job.sh", "hora submit …")
