"""What was asked of a scheduler: the values of ``hora submit``'s options, read and checked. Knows no scheduler."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path, PurePath
from typing import NamedTuple

import msgspec

from hora.errors import UsageError

__all__ = [
    "BatchJob",
    "Stage",
    "WarningSignal",
    "hora_words",
    "name_of",
    "parse_elastic",
    "parse_env",
    "parse_mem",
    "parse_stage",
    "parse_time",
    "parse_warn",
    "split_words",
]

_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")


class Stage(NamedTuple):
    """Something to bring to each node's own disk: a tar file is unpacked into a folder, anything else is copied."""

    source: str
    name: str


class WarningSignal(NamedTuple):
    """The warning before the time is up: which signal, and how many seconds before."""

    signal: str
    seconds: int


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or a chain of them. ``None`` and empty mean: leave it to the scheduler."""

    command: tuple[str, ...]
    name: str
    nodes: int = 1
    tasks_per_node: int = 1
    elastic: tuple[int, int] | None = None  # the fewest workers to continue with, and the most; tasks are those
    cpus_per_task: int | None = None
    gpus_per_node: str = ""
    mem_mb: int | None = None  # of a node; 0: all that it has
    time_s: int | None = None
    queue: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    exclusive: bool = False
    array: str = ""
    directives: tuple[str, ...] = ()

    output: str = ""  # a directory, or a pattern with %x (name), %j (job) and %a (task of an array)
    modules: tuple[str, ...] = ()
    venv: str = ""
    env: tuple[tuple[str, str], ...] = ()
    launcher: str = "auto"  # none: the command itself; run; srun
    container: str = ""  # an image
    container_runtime: str = ""  # who runs it
    mounts: tuple[str, ...] = ()

    stage: tuple[Stage, ...] = ()
    stage_dir: str = ""
    keep_staged: bool = False

    chain: int = 1
    chain_after: str = "ok"
    epochs_per_job: int = 0
    checkpoint_args: tuple[str, ...] = ()

    warn: WarningSignal | None = None
    max_requeues: int = 0  # 0: never put back into the queue

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def how_many(self) -> str:
        """The flags of `hora run` that say how many workers."""
        return f"-np {self.tasks}" if self.elastic is None else "--min-np {} --max-np {}".format(*self.elastic)

    @property
    def highest_task(self) -> int:
        """The largest index of the array.

        >>> [BatchJob(command=("x",), name="x", array=array).highest_task for array in ("0-9%2", "1,3,5", "0-9:4")]
        [9, 5, 8]
        """
        highest = 0
        for part in self.array.partition("%")[0].split(","):
            first, _, rest = part.partition("-")
            last, _, step = rest.partition(":")
            highest = max(highest, range(int(first), int(last or first) + 1, int(step or 1))[-1])
        return highest

    @property
    def fewest_nodes(self) -> int:
        """Those that an elastic job can begin with."""
        return self.nodes if self.elastic is None else -(-self.elastic[0] // self.tasks_per_node)

    @property
    def starts_workers(self) -> bool:
        """Whether the command starts its workers itself, so that the script runs it once: Hora's own commands do."""
        if self.in_each_worker:
            return False
        return self.launcher == "none" or (self.launcher == "auto" and hora_words(self.command) is not None)

    @property
    def in_each_worker(self) -> bool:
        """Whether every worker is a container of its own, started by srun."""
        return bool(self.container) and (self.nodes > 1 or self.container_runtime == "slurm")

    @property
    def output_pattern(self) -> str:
        """Where the output goes, under a name that identifies the experiment."""
        if self.output and not (self.output.endswith("/") or Path(self.output).is_dir()):
            return self.output
        folder = self.output.rstrip("/") or ("logs" if not self.output else "/")
        identity = "%A_%a" if self.array else "%j"
        return f"{folder}/%x-{self.nodes}x{self.tasks_per_node}-{identity}.log"

    @property
    def placeholders(self) -> frozenset[str]:
        """What may stand in braces in the command; what the order gives no meaning to is passed on as it is."""
        given = {"stage": self.stage, "job": self.chain > 1, "epochs": self.epochs_per_job, "task": self.array}
        return frozenset(name for name, value in given.items() if value)

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("there is no command to submit. Write for example 'hora submit … python train.py'.")
        for flag, text in (
            ("--job-name", self.name), ("--gpus-per-node", self.gpus_per_node), ("--partition", self.queue),
            ("--account", self.account), ("--qos", self.qos), ("--constraint", self.constraint),
            ("--array", self.array), ("--output", self.output),
        ):  # fmt: skip
            if re.search(r"[\s'\"\\`$\x00-\x1f]", text):
                raise UsageError(f"{flag} {text!r} has spaces, quotes or a $ in it, which directives cannot carry.")
        for text in self.directives:
            if re.search(r"[\x00-\x1f]", text):
                raise UsageError(f"--directive {text!r} is more than one line. Give each its own --directive.")
        if any("\0" in word for word in (*self.command, *self.checkpoint_args)):
            raise UsageError("the command has a NUL character in it, which no program can be given.")
        if self.gpus_per_node and not re.fullmatch(r"(?:[\w.-]+:)?[1-9]\d*", self.gpus_per_node):
            raise UsageError(
                f"--gpus-per-node {self.gpus_per_node!r}: give a number such as 4, or a type as in p100:4."
            )
        if self.array and not re.fullmatch(r"\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*(?:%\d+)?", self.array):
            raise UsageError(
                f"--array {self.array!r}: give task numbers such as 0-9, 1,3,5 or 0-99%4 (four at a time)."
            )
        for first, last, step in re.findall(r"(\d+)-(\d+)(?::(\d+))?", self.array):
            if int(last) < int(first) or (step and not int(step)):
                raise UsageError(f"--array {self.array!r} has no task. Give the first and the last, such as 0-9.")
        self._check_chain()
        self._check_elastic()
        words = hora_words(self.command)
        if self.launcher in ("srun", "run") and words is not None and words[:1] != ("train",):
            raise UsageError(
                f"--launcher {self.launcher} would start 'hora {' '.join(words[:1])}' once a task, and it starts its "
                "own workers. "
                "Leave --launcher out."
            )
        names = [stage.name for stage in self.stage]
        if len(set(names)) < len(names):
            raise UsageError(f"--stage: two sources would have the same name ({', '.join(names)}). Use SOURCE:NAME.")

    def _check_elastic(self) -> None:
        if self.elastic is None:
            return
        fewest, most = self.elastic
        if most > self.tasks:
            raise UsageError(
                f"--elastic {fewest}:{most} may use {most} workers, and the job has {self.nodes} x "
                f"{self.tasks_per_node} tasks. Ask for more with --nodes or --tasks-per-node."
            )
        if self.launcher == "srun":
            raise UsageError(
                "--elastic needs hora run to start the workers: srun ends them all when one dies. Leave --launcher "
                "srun out."
            )
        if self.in_each_worker:
            raise UsageError(
                f"--elastic needs hora run to start the workers, and with --container {self.container} on "
                f"{self.nodes} x {self.tasks_per_node} srun starts a container for each, and ends all when one dies. "
                "Ask for one node with an image of Apptainer's or Docker's, which goes around hora run, or leave "
                "--container out."
            )
        own = hora_words(self.command)
        if own is not None and own[:1] != ("train",):
            raise UsageError(
                f"--elastic is for training, and 'hora {' '.join(own[:1])}' starts its own workers. Give that command "
                "its own flags instead, such as --min-np."
            )

    def _check_chain(self) -> None:
        words = " ".join((*self.command, *self.checkpoint_args))
        if self.epochs_per_job and "{epochs}" not in words:
            raise UsageError(
                f"--epochs-per-job {self.epochs_per_job}: the command does not say where the number goes. Write "
                "{epochs} in it, as in: python train.py --epochs {epochs}"
            )
        if self.epochs_per_job and self.chain == 1:
            raise UsageError(f"--epochs-per-job {self.epochs_per_job} is for a chain of jobs. Give --chain N as well.")
        if self.checkpoint_args and self.chain == 1 and not self.max_requeues:
            raise UsageError(
                "--checkpoint-arg is added to the command when a job continues where another stopped, and here none "
                "does. Give --chain N or --requeue as well."
            )
        if self.stage and "{stage}" not in words:
            raise UsageError(
                "--stage: the command does not use what is staged. Write {stage} for the folder it is in, as in: "
                f"python train.py --data {{stage}}/{self.stage[0].name}"
            )


# ---- reading values ----


def hora_words(command: Sequence[str]) -> tuple[str, ...] | None:
    """What follows ``hora`` in a command of Hora's own, however it is started; None of any other.

    >>> hora_words(["venv/bin/hora", "lab", "scaling"]), hora_words(["python3", "-m", "hora", "train"])
    (('lab', 'scaling'), ('train',))
    >>> hora_words(["python", "train.py", "hora"])
    """
    if PurePath(command[0]).name == "hora" if command else False:
        return tuple(command[1:])
    if len(command) > 2 and PurePath(command[0]).name.startswith("python") and tuple(command[1:3]) == ("-m", "hora"):
        return tuple(command[3:])
    return None


def name_of(command: Sequence[str]) -> str:
    """A job's name, from the script, module, workload or experiment that it runs.

    >>> name_of(["python", "-u", "src/train_resnet.py", "--lr", "0.1"]), name_of(["python", "-m", "lab.train"])
    ('train_resnet', 'train')
    >>> name_of(["hora", "train", "mnist", "--epochs", "2"]), name_of(["hora", "lab", "scaling", "mnist"])
    ('train-mnist', 'scaling-mnist')
    >>> name_of(["/opt/bin/3d model"])
    'job-3d-model'
    """
    name = PurePath(command[0]).name if command else ""
    own = hora_words(command) or ()
    if own[:1] != ("run",) and (words := list(takewhile(lambda word: word[:1] != "-", own))):
        name = "-".join(PurePath(word).stem for word in words[words[0] == "lab" :][:2])
        command = ()
    for word, following in zip(command, (*command[1:], ""), strict=False):
        if word.endswith(".py"):
            name = PurePath(word).stem
            break
        if word == "-m" and following:
            name = following.rpartition(".")[2]
            break
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")  # PBS wants a letter first


def parse_time(text: str) -> int:
    """Seconds, of a time as Slurm writes it (minutes, H:M:S, D-H, D-H:M:S) or as people do.

    >>> parse_time("90"), parse_time("1:30:00"), parse_time("1-12"), parse_time("1d12h"), parse_time("45m")
    (5400, 5400, 129600, 129600, 2700)
    """
    text = text.strip().lower()
    units = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?", text)
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if text and units:
        days, hours, minutes, seconds = (int(part or 0) for part in units.groups())
    elif clock:
        numbers = [int(part) for part in clock.groups()[1:] if part is not None]
        if clock[1] is None and len(numbers) < 3:  # minutes, minutes:seconds
            numbers = [0, *numbers]
        days = int(clock[1] or 0)
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        days = hours = minutes = seconds = 0
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise UsageError(f"--time {text!r} is not a time. Write 4h, 1d12h, 04:00:00, 1-12:00:00, or minutes.")
    return total


def parse_mem(text: str) -> int:
    """Megabytes of a node; 0: all it has.

    >>> parse_mem("64G"), parse_mem("500"), parse_mem("1.5T"), parse_mem("0")
    (65536, 500, 1572864, 0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise UsageError(f"--mem {text!r} is not an amount of memory. Write 64G, 500M, or 0 for all of a node.")
    scale = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024 * 1024}[match[2]]
    value = float(match[1]) * scale
    return max(1, round(value)) if value else 0


def parse_warn(text: str) -> WarningSignal:
    """When to be warned, written as Slurm does.

    >>> parse_warn("USR1@120"), parse_warn("SIGTERM@60"), parse_warn("B:USR1@5m")
    (WarningSignal(signal='USR1', seconds=120), WarningSignal(signal='TERM', seconds=60), WarningSignal(signal='USR1',
    seconds=300))
    """
    match = re.fullmatch(r"(?:[BR]+:)?(?:SIG)?(USR1|USR2|TERM|INT|HUP)(?:@(\d+)(s|m)?)?", text.strip().upper(), re.I)
    if not match:
        raise UsageError(f"--signal {text!r} is not understood. Write USR1@120: SIGUSR1, 120 seconds before the end.")
    seconds = int(match[2] or 60) * (60 if match[3] in ("m", "M") else 1)
    if not 0 < seconds <= 65535:
        raise UsageError(f"--signal {text!r}: Slurm takes between 1 and 65535 seconds.")
    return WarningSignal(match[1], seconds)


def parse_stage(text: str) -> Stage:
    """SOURCE or SOURCE:NAME.

    >>> parse_stage("/data/imagenet.tar"), parse_stage("sets/cifar:images")
    (Stage(source='/data/imagenet.tar', name='imagenet'), Stage(source='sets/cifar', name='images'))
    """
    source, colon, name = text.rpartition(":")
    if not colon:
        source, name = text, PurePath(text).name
        for ending in sorted(_ARCHIVES, key=len, reverse=True):
            name = name.removesuffix(ending)
    if not source or not re.fullmatch(r"[\w+-][\w.+-]*", name):
        raise UsageError(f"--stage {text!r} is not understood. Write SOURCE, or SOURCE:NAME with a plain name.")
    return Stage(source, name)


def parse_elastic(text: str) -> tuple[int, int]:
    """MIN:MAX workers.

    >>> parse_elastic("2:4")
    (2, 4)
    """
    match = re.fullmatch(r"(\d+):(\d+)", text.strip(), re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--elastic {text!r}: give the fewest workers and the most, such as 2:4.")
    return int(match[1]), int(match[2])


def parse_env(text: str) -> tuple[str, str]:
    """NAME=VALUE.

    >>> parse_env("NCCL_DEBUG=INFO=x")
    ('NCCL_DEBUG', 'INFO=x')
    """
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or "\0" in value:
        raise UsageError(f"--env {text!r} is not understood. Write NAME=VALUE.")
    return name, value


def split_words(text: str) -> tuple[str, ...]:
    """A part of a command line, as words.

    >>> split_words("--resume 'my runs/last.pt'")
    ('--resume', 'my runs/last.pt')
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be split into words: {error}. Check its quotes.") from None
