"""Writing a job script and handing it to its scheduler, once or as a chain."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.submit.order import BatchJob
from hora.launch.submit.scheduler import Scheduler
from hora.launch.submit.script import MARK

__all__ = ["Submitted", "commands", "send", "write"]

_LONGEST_WAIT_S = 120.0  # a busy scheduler takes its time, but not for ever


class Submitted(msgspec.Struct, frozen=True):
    """A job that a scheduler has taken."""

    id: str
    command: tuple[str, ...]
    after: str | None
    output: str


def write(path: Path, text: str) -> None:
    """Write the script, over an earlier one of ours at most."""
    try:
        if path.exists() and MARK not in path.read_text(errors="replace"):
            raise UsageError(
                f"{str(path)!r} is there already and was not written by hora submit, so it is left alone. "
                "Give another name with --script."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise EnvironmentUnfit(
            f"the job script {str(path)!r} cannot be written: {error.strerror}. Nothing was submitted. "
            "Give another place with --script."
        ) from None


def commands(order: BatchJob, scheduler: Scheduler, script: Path) -> Iterator[tuple[str, ...]]:
    """What would be run, with ``<job 1>`` in place of ids that are not known yet."""
    for job in range(1, order.chain + 1):
        after = f"<job {job - 1}>" if job > 1 else None
        yield tuple(scheduler.submission(order, str(script), job, after))


def send(order: BatchJob, scheduler: Scheduler, script: Path) -> list[Submitted]:
    """Submit the script; each job of a chain after the one before. If the scheduler refuses, its message is shown."""
    if shutil.which(scheduler.program) is None:
        raise EnvironmentUnfit(
            f"{scheduler.program} was not found, so nothing was submitted; the script is in {script}. "
            f"Submit it where {scheduler.name} is installed, usually a login node, or look at PATH."
        )
    folder = Path(order.output_pattern).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)  # schedulers make no folders: a job would fail without a word
    except OSError as error:
        raise EnvironmentUnfit(
            f"the folder {str(folder)!r} for the output cannot be made: {error.strerror}. Nothing was submitted, "
            "because the output would be lost. Give another place with --output."
        ) from None
    sent: list[Submitted] = []
    for job in range(1, order.chain + 1):
        after = sent[-1].id if sent else None
        command = tuple(scheduler.submission(order, str(script), job, after))
        job_id = _submit(command, scheduler, script, sent)
        sent.append(Submitted(job_id, command, after, _output(order, job_id)))
    return sent


def _submit(command: tuple[str, ...], scheduler: Scheduler, script: Path, sent: list[Submitted]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_LONGEST_WAIT_S
        )
        said, failed = done.stderr.strip() or done.stdout.strip(), done.returncode != 0
        job_id = scheduler.read_id(done.stdout)
        what = f"refused the job (exit code {done.returncode})" if failed else "printed no job id"
    except subprocess.TimeoutExpired:
        said, job_id, failed, what = "", "", True, f"did not answer within {_LONGEST_WAIT_S:.0f} s"
    except OSError as error:
        said, job_id, failed, what = "", "", True, f"could not be run ({error.strerror})"
    if not failed and job_id:
        return job_id
    message = f"{scheduler.program} {what}{': ' + said if said else ''}. The script is in {script}."
    if sent:
        ids = [job.id for job in sent]
        message += f" Submitted before that: {', '.join(ids)}; cancel them with '{scheduler.cancel(ids)}'."
    raise EnvironmentUnfit(message + " Correct what it says and submit again.")


def _output(order: BatchJob, job_id: str) -> str:
    """The output file of a job; of an array's tasks, with %a for the task.

    >>> _output(BatchJob(command=("x",), name="train", nodes=2), "12.server")
    'logs/train-2x1-12.log'
    """
    number = re.sub(r"[\[.].*", "", job_id)
    path = order.output_pattern.replace("%x", order.name)
    return path.replace("%j", number).replace("%A", number)
