"""Environment variables: the only reader of ``os.environ``, and the one table of what each variable means.

Every variable is looked up as ``HORA_<NAME>`` and then as ``HOROVOD_<NAME>``; an empty value counts as unset. A value
that cannot be read is a ``UsageError`` that names the variable, the value and what would be allowed, never a silent
default. The reference page in the docs is made from the same table by ``reference()``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from hora.config.settings import JoinAverage, LogLevel, NonFinite, Settings, Transport
from hora.errors import UsageError

__all__ = [
    "PREFIXES",
    "VARIABLES",
    "Secret",
    "Variable",
    "default",
    "during",
    "environ",
    "find",
    "flag",
    "keep_from_children",
    "launcher_option",
    "launcher_process",
    "make_tensorflow_quiet",
    "quiet_tensorflow",
    "reference",
    "settings",
    "take_secret",
]

PREFIXES = ("HORA_", "HOROVOD_")


# ---- how values are read: each parser returns the value or raises ValueError saying what is allowed ----


def _bool(text: str) -> bool:
    value = text.strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("1, true, yes, on or 0, false, no, off")


def _not(text: str) -> bool:
    return not _bool(text)


def _text(text: str) -> str:
    return text


def _bytes(text: str) -> int:
    """Bytes, with an optional binary unit.

    >>> _bytes("67108864"), _bytes("64MB"), _bytes("1 g")
    (67108864, 67108864, 1073741824)
    """
    digits = text.strip().lower().removesuffix("b").removesuffix("i").strip()
    shift = {"k": 10, "m": 20, "g": 30}.get(digits[-1:], 0)
    digits = digits[:-1].strip() if shift else digits
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError("a number of bytes such as 67108864 or 64MB")
    return int(digits) << shift


def _int(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise ValueError(f"a whole number, at least {low}")
        return value

    return parse


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a number, at least 0")
    return value


def _fail_bound(text: str) -> float:
    """Horovod's 0 means "warn for ever"; here it keeps the default bound, because nothing may hang for ever."""
    return _number(text) or Settings().stall_fail_s


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ValueError(" or ".join(allowed))
        return value

    return parse


def _cpu_operations(text: str) -> str:
    return {"gloo": "gloo"}.get(_choice("mpi", "gloo", "ccl")(text), "auto")


def _cores(text: str) -> tuple[int, ...]:
    try:
        return tuple(_int(0)(part) for part in text.split(","))
    except ValueError:
        raise ValueError("a core number, or one per local rank separated by commas") from None


def _addresses(text: str) -> tuple[str, ...]:
    """
    >>> _addresses("10.0.0.1:40123,[fd00::1]:40123")
    ('10.0.0.1:40123', '[fd00::1]:40123')
    """
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        host, _, port = part.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()):
            raise ValueError("host:port, or several with commas between")
    return parts


class Secret(bytes):
    """Bytes that are not printed by accident."""

    def __repr__(self) -> str:
        return "Secret()"


def _secret(text: str) -> Secret:
    if re.fullmatch("[0-9a-fA-F]{64}", text) is None:
        raise ValueError("64 hexadecimal digits")
    return Secret.fromhex(text)


# ---- the table ----


class Variable(NamedTuple):
    """One variable: its name without prefix, the ``Settings`` field it sets ("" if none), its parser, its meaning."""

    name: str
    field: str
    parse: Callable[[str], Any]
    help: str

    @property
    def default(self) -> object:
        return getattr(Settings(), self.field) if self.field else None


_NOTHING = "Accepted so that scripts for Horovod keep working; has no effect in Hora."

VARIABLES: tuple[Variable, ...] = (
    # Moving data. Of two rows for one field the earlier wins.
    Variable("TRANSPORT", "transport", _choice(*get_args(Transport)),
             "Transport of the data: auto (shared memory inside a host, Hora's own connections between hosts, over UCX "
             "if all hosts have InfiniBand), tcp (over plain sockets), ucx (over UCX), mpi (MPI between hosts), "
             "shm+gloo (Gloo between hosts), shm (one host), or gloo between all workers."),
    Variable("HIERARCHICAL_ALLREDUCE", "hierarchical", _bool,
             "On several hosts, combine inside each host first; 0 lets all workers talk to all."),
    Variable("CPU_OPERATIONS", "transport", _cpu_operations,
             "Horovod's name for the choice: gloo forces gloo; mpi and ccl leave it to Hora."),
    Variable("FUSION_THRESHOLD", "fusion_bytes", _bytes,
             "Largest number of bytes fused into one operation; 0 turns fusion off."),
    Variable("DISABLE_GROUP_FUSION", "disable_group_fusion", _bool, "Do not fuse a group with other operations."),
    Variable("CYCLE_TIME", "cycle_time_ms", _number,
             "Milliseconds the background thread may wait for more tensors to fuse. Nothing waits for it when idle."),
    Variable("CACHE_CAPACITY", "cache_capacity", _int(0), "How many agreed operations are remembered; 0: none."),
    Variable("SPIN_US", "spin_us", _int(-1),
             "Microseconds to spin before sleeping; -1: briefly if every worker has a core, else not at all."),
    Variable("ARENA_BYTES", "arena_bytes", _bytes, "Size of each worker's arena in shared memory; 0: automatic."),
    Variable("THREAD_AFFINITY", "thread_affinity", _cores,
             "Core for the background thread, or a list with one core per local rank."),
    Variable("GLOO_IFACE", "gloo_iface", _text, "Network interface for gloo between hosts."),
    Variable("GLOO_TIMEOUT_SECONDS", "gloo_timeout_s", _number, "How long gloo waits for a connection."),
    # Meaning
    Variable("STRICT", "strict", _bool, "Make warnings errors, such as unnamed operations paired across source lines."),
    Variable("JOIN_AVERAGE", "join_average", _choice(*get_args(JoinAverage)),
             "What Average divides by after a join: all ranks, as Horovod does, or those still active."),
    # Deadlines
    Variable("START_TIMEOUT", "start_timeout_s", _number,
             "Seconds init waits for the other workers; one more second is granted per worker."),
    Variable("HOST_TIMEOUT", "host_timeout_s", _number, "Seconds of silence after which a host counts as lost."),
    Variable("STOPPED_TIMEOUT", "stopped_timeout_s", _number,
             "Elastic: seconds after which a worker that is stopped (SIGSTOP, a debugger) counts as lost."),
    Variable("STALL_CHECK_DISABLE", "stall_check", _not, "1 turns stall warnings and the stall bound off."),
    Variable("STALL_CHECK_TIME_SECONDS", "stall_warn_s", _number, "Warn of an operation some ranks did not submit."),
    Variable("STALL_SHUTDOWN_TIME_SECONDS", "stall_fail_s", _fail_bound,
             "Fail such an operation on every rank; 0 keeps the default."),
    # Training
    Variable("BUCKET", "bucket_bytes", _bytes, "Gradients are reduced in buckets of about this size."),
    Variable("SHARED_GRADIENTS", "shared_gradients", _bool,
             "Let large gradients be allocated in shared memory, where hora run preloads its allocator into workers."),
    Variable("NONFINITE", "nonfinite", _choice(*get_args(NonFinite)),
             "What to do about gradients that are inf or nan: name them, stop, skip the step, or do not look."),
    Variable("DIVERGENCE_CHECK", "divergence_every", _int(0),
             "Compare the parameters of all ranks every N steps; 0: never."),
    # Telling
    Variable("SUMMARY", "summary", _bool, "Rank 0 prints a line about speed and communication now and then."),
    Variable("FULL_TRACEBACK", "", _bool,
             "1 shows Hora's own frames in tracebacks too, and every worker's traceback at once."),
    Variable("LOG_LEVEL", "log_level", _choice(*get_args(LogLevel)), "Least severe message to print."),
    Variable("LOG_HIDE_TIME", "log_hide_time", _bool, "Leave the time out of messages."),
    Variable("TIMELINE", "timeline", _text,
             "File to record a timeline in, one per rank; with DYNAMIC recording starts at start_timeline."),
    Variable("TIMELINE_MARK_CYCLES", "timeline_mark_cycles", _bool, "Mark cycles in the timeline."),
    Variable("TIMELINE_MAX_BYTES", "timeline_max_bytes", _bytes, "Stop recording when a rank's file is this large."),
    # The world, set by the launcher and read by config.world
    Variable("RANK", "", _int(0), "This worker's rank, set by the launcher."),
    Variable("SIZE", "", _int(1), "How many workers there are, set by the launcher."),
    Variable("WORKER", "", _int(0), "This worker's number in an elastic job, set by the launcher."),
    Variable("LOCAL_RANK", "", _int(0), "Rank among the workers of this host, set by the launcher."),
    Variable("LOCAL_SIZE", "", _int(1), "How many workers this host has, set by the launcher."),
    Variable("CROSS_RANK", "", _int(0), "Rank among the hosts that have this local rank, set by the launcher."),
    Variable("CROSS_SIZE", "", _int(1), "How many hosts have this local rank, set by the launcher."),
    Variable("HOSTNAME", "", _text, "This host's name in the plan, set by the launcher."),
    Variable("HOMOGENEOUS", "", _bool, "Whether every host has the same number of workers, set by the launcher."),
    Variable("JOB", "", _text, "The job's random name; marks every process of the job."),
    Variable("HUB_FD", "", _int(0), "Inherited descriptor of the connection to the hub, set by the launcher."),
    Variable("HUB_ADDRESSES", "", _addresses,
             "Where the hub listens, host:port with commas between, set by the launcher on several hosts."),
    Variable("SECRET_FD", "", _int(0),
             "Inherited descriptor that the job's secret is read from, set by the launcher on several hosts."),
    Variable("SECRET", "", _secret,
             "The job's secret in hexadecimal, set by the launcher where nothing but the environment reaches workers."),
    Variable("RENDEZVOUS_DIR", "", _text,
             "Directory that all hosts share, which workers started by mpirun, srun or torchrun use to connect; "
             "~/.cache/hora if unset."),
    Variable("SSH", "", _text, "The ssh command that hora run uses, with options, such as 'ssh -F my_config'."),
    Variable("ALONE", "", _bool, "1 makes init start a single worker, whatever launcher started the process."),
    # Horovod's names that have nothing to tune here
    *(Variable(name, "", _text, _NOTHING) for name in (
        "ADASUM_MPI_CHUNK_SIZE", "AUTOTUNE", "AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        "AUTOTUNE_LOG", "AUTOTUNE_STEPS_PER_SAMPLE", "AUTOTUNE_WARMUP_SAMPLES", "BATCH_D2D_MEMCOPIES", "CCL_CACHE",
        "CONTROLLER", "DISABLE_NVTX_RANGES", "DYNAMIC_PROCESS_SETS", "ELASTIC", "ELASTIC_TIMEOUT",
        "ENABLE_ASYNC_COMPLETION", "ENABLE_XLA_OPS", "HIERARCHICAL_ALLGATHER", "MPI_THREADS_DISABLE",
        "NUM_NCCL_STREAMS", "TORUS_ALLREDUCE",
    )),
)  # fmt: skip

_BY_NAME = {variable.name: variable for variable in VARIABLES}


# ---- reading ----


@contextlib.contextmanager
def during(**variables: str) -> Iterator[None]:
    """Set variables for a library that cannot be configured in another way, and restore the old values.

    >>> with during(NOBODY_READS_THIS="1"):
    ...     environ()["NOBODY_READS_THIS"]
    '1'
    >>> "NOBODY_READS_THIS" in environ()
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def default(name: str, value: str) -> None:
    """Set a variable for a library that reads it at a time of its own, unless the user has set it."""
    os.environ.setdefault(name, value)


def environ() -> Mapping[str, str]:
    """A snapshot of this process's environment."""
    return dict(os.environ)


def quiet_tensorflow(variables: Mapping[str, str]) -> dict[str, str]:
    """The variable that suppresses TensorFlow's messages about how it was compiled; its errors are still printed.
    Nothing if the user has set it.

    >>> quiet_tensorflow({}), quiet_tensorflow({"TF_CPP_MIN_LOG_LEVEL": "0"})
    ({'TF_CPP_MIN_LOG_LEVEL': '2'}, {})
    """
    name = "TF_CPP_MIN_LOG_LEVEL"
    return {} if name in variables else {name: "2"}


def make_tensorflow_quiet() -> None:
    """The same for this process, before it imports TensorFlow."""
    os.environ.update(quiet_tensorflow(os.environ))


def take_secret() -> None:
    """Remove the job's secret from this process's environment, so that its children do not get it."""
    for prefix in PREFIXES:
        os.environ.pop(f"{prefix}SECRET", None)


def keep_from_children(library: str) -> None:
    """Take a preloaded library out of this process's environment: it is meant for a worker, not for what it starts.

    >>> with during(LD_PRELOAD="/lib/a.so:/lib/hora.so"):
    ...     keep_from_children("/lib/hora.so")
    ...     environ()["LD_PRELOAD"]
    '/lib/a.so'
    """
    names = re.split("[: ]+", os.environ.get("LD_PRELOAD", ""))
    if library in names:
        others = ":".join(name for name in names if name != library)
        if others:
            os.environ["LD_PRELOAD"] = others
        else:
            del os.environ["LD_PRELOAD"]


def launcher_process(marker: str) -> str:
    """Which process set the variable ``marker``: the nearest ancestor without it, as ``<pid>-<start time>``.

    All workers that one launcher started on this host find the same answer, even through a shell in between, and no
    other job does. Where there is no ``/proc`` it is the parent.
    """
    pid = os.getpid()
    started = ""
    while pid > 1:
        try:
            parent, began = _parent_and_start(pid)
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = f"{marker}=".encode() in b"\0" + file.read() or pid == os.getpid()
        except OSError:  # gone, or another user's: then it is not one of ours
            break
        started = began
        if not marked:
            break
        pid = parent
    return f"{pid}-{started}" if started else str(os.getppid())


def _parent_and_start(pid: int) -> tuple[int, str]:
    """A process's parent, and when it was started, in the kernel's own measure."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name in field 2 may hold spaces and brackets; the rest starts after the last bracket.
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[1]), fields[19].decode()


def launcher_option(option: str) -> str:
    """The value of an option on the command line of the nearest ancestor that has it; empty if none has.

    >>> launcher_option("--no-such-option")
    ''
    """
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
            parent, _ = _parent_and_start(pid)
        except OSError:
            break
        if option in words[:-1]:
            return words[words.index(option) + 1]
        pid = parent
    return ""


def find(env: Mapping[str, str], name: str) -> Any:
    """The value of the variable ``name`` (without prefix), or None if it is unset or empty.

    >>> find({"HOROVOD_RANK": "3"}, "RANK")
    3
    >>> find({"HOROVOD_RANK": "3", "HORA_RANK": "1"}, "RANK")
    1
    >>> find({"HORA_RANK": "first"}, "RANK")
    Traceback (most recent call last):
    hora.errors.UsageError: HORA_RANK='first' cannot be read: it must be a whole number, at least 0. ...
    """
    variable = _BY_NAME[name]
    for prefix in PREFIXES:
        text = env.get(prefix + name, "")
        if text:
            try:
                return variable.parse(text)
            except ValueError as error:
                raise UsageError(
                    f"{prefix}{name}={text!r} cannot be read: it must be {error}. Correct or unset it."
                ) from None
    return None


def flag(env: Mapping[str, str], name: str) -> bool:
    """Whether the boolean variable ``name`` is set and true."""
    return bool(find(env, name))


def settings(env: Mapping[str, str]) -> Settings:
    """The settings that ``env`` asks for; everything else keeps its default.

    >>> settings({"HOROVOD_FUSION_THRESHOLD": "64MB", "HOROVOD_STALL_CHECK_DISABLE": "1"}).fusion_bytes
    67108864
    """
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        if variable.field and variable.field not in values:
            value = find(env, variable.name)
            if value is not None:
                values[variable.field] = value
    return Settings(**values)


def reference() -> str:
    """The table as Markdown, for the docs."""
    rows = ["| variable (`HORA_…`, `HOROVOD_…`) | default | meaning |", "| --- | --- | --- |"]
    for variable in VARIABLES:
        default = variable.default if variable.parse is not _not else not variable.default
        default = f"`{default}`" if default not in (None, "", ()) else ""
        rows.append(f"| `{variable.name}` | {default} | {variable.help} |")
    return "\n".join(rows) + "\n"
