"""The table of ``hora run``'s flags that tune workers: horovodrun's names, the variable each sets, its place in a
configuration file. A flag on the command line beats the file, the file beats the environment."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from hora.errors import EnvironmentUnfit, UsageError

__all__ = ["FLAGS", "Flag", "environment_of", "options", "read_config_file"]


def _same(value: Any) -> str:
    return str(value)


def _megabytes(value: Any) -> str:
    return str(int(float(value) * (1 << 20)))


def _yes(value: Any) -> str:
    return "1" if value else "0"


def _no(value: Any) -> str:
    return "0" if value else "1"


class Flag(NamedTuple):
    """One flag: how it is written, its type, the variable (without prefix) it sets, how, and its key in the file."""

    names: tuple[str, ...]
    kind: Any  # what click takes as a type
    variable: str
    key: str
    help: str
    encode: Callable[[Any], str] = _same

    @property
    def parameter(self) -> str:
        """The name that click gives the value."""
        return self.names[0].partition("/")[0].lstrip("-").replace("-", "_")

    @property
    def metavar(self) -> str | None:
        """What help shows for the value: its unit, which the name ends with, or what it is."""
        if self.kind is bool or isinstance(self.kind, click.Choice):
            return None
        return _METAVARS.get(self.parameter.rpartition("_")[2], "N")


_METAVARS = {
    "mb": "MB", "ms": "MS", "seconds": "SECONDS", "timeout": "SECONDS", "file": "FILE", "filename": "FILE",
    "affinity": "CORE,…",
}  # fmt: skip
_POSITIVE = click.FloatRange(min=0)
_COUNT = click.IntRange(min=0)
_LEVELS = click.Choice(["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"], case_sensitive=False)
_UNUSED = "Accepted for compatibility; has no effect."


def _switch(name: str, variable: str, key: str, help: str, encode: Callable[[Any], str] = _yes) -> Flag:
    return Flag((f"--{name}/--no-{name}",), bool, variable, key, help, encode)


FLAGS: tuple[Flag, ...] = (
    # Tunables
    Flag(("--fusion-threshold-mb",), _POSITIVE, "FUSION_THRESHOLD", "params.fusion_threshold_mb",
         "Fuse tensors up to this size; 0 turns fusion off.  [default: 128]", _megabytes),
    Flag(("--cycle-time-ms",), _POSITIVE, "CYCLE_TIME", "params.cycle_time_ms",
         "How long to wait for more tensors to fuse.  [default: 1]"),
    Flag(("--cache-capacity",), _COUNT, "CACHE_CAPACITY", "params.cache_capacity",
         "How many operations to remember, so that repeats are cheap; 0: none.  [default: 1024]"),
    _switch("hierarchical-allreduce", "HIERARCHICAL_ALLREDUCE", "params.hierarchical_allreduce",
            "On several hosts, reduce inside each host first.  [default: yes]"),
    _switch("hierarchical-allgather", "HIERARCHICAL_ALLGATHER", "params.hierarchical_allgather", _UNUSED),
    _switch("torus-allreduce", "TORUS_ALLREDUCE", "params.torus_allreduce", _UNUSED),
    # Autotune
    _switch("autotune", "AUTOTUNE", "autotune.enabled", _UNUSED),
    Flag(("--autotune-log-file",), str, "AUTOTUNE_LOG", "autotune.log_file", _UNUSED),
    Flag(("--autotune-warmup-samples",), _COUNT, "AUTOTUNE_WARMUP_SAMPLES", "autotune.warmup_samples", _UNUSED),
    Flag(("--autotune-steps-per-sample",), _COUNT, "AUTOTUNE_STEPS_PER_SAMPLE", "autotune.steps_per_sample", _UNUSED),
    Flag(("--autotune-bayes-opt-max-samples",), _COUNT, "AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
         "autotune.bayes_opt_max_samples", _UNUSED),
    Flag(("--autotune-gaussian-process-noise",), _POSITIVE, "AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
         "autotune.gaussian_process_noise", _UNUSED),
    # Timeline
    Flag(("--timeline-filename",), str, "TIMELINE", "timeline.filename", "Record a timeline, one file per rank."),
    _switch("timeline-mark-cycles", "TIMELINE_MARK_CYCLES", "timeline.mark_cycles", "Mark cycles in the timeline."),
    # Stall
    _switch("stall-check", "STALL_CHECK_DISABLE", "stall_check.enabled",
            "Warn about ranks that others wait for.  [default: yes]", _no),
    Flag(("--stall-check-warning-time-seconds",), _POSITIVE, "STALL_CHECK_TIME_SECONDS",
         "stall_check.warning_time_seconds", "Warn after this time.  [default: 20]"),
    Flag(("--stall-check-shutdown-time-seconds",), _POSITIVE, "STALL_SHUTDOWN_TIME_SECONDS",
         "stall_check.shutdown_time_seconds", "Fail after this time; 0: the default.  [default: 600]"),
    # Library
    _switch("mpi-threads-disable", "MPI_THREADS_DISABLE", "library_options.mpi_threads_disable", _UNUSED),
    Flag(("--num-nccl-streams",), _COUNT, "NUM_NCCL_STREAMS", "library_options.num_nccl_streams", _UNUSED),
    Flag(("--thread-affinity",), str, "THREAD_AFFINITY", "library_options.thread_affinity",
         "Core for the background thread, or a list with one per local rank."),
    Flag(("--gloo-timeout-seconds",), _POSITIVE, "GLOO_TIMEOUT_SECONDS", "library_options.gloo_timeout_seconds",
         "How long Gloo waits for a connection.  [default: 30]"),
    Flag(("--start-timeout",), _POSITIVE, "START_TIMEOUT", "params.start_timeout",
         "How long hosts may take to connect, and workers to call init; one second more for each.  [default: 30]"),
    # Logging
    Flag(("--log-level",), _LEVELS, "LOG_LEVEL", "logging.level", "Lowest severity to print.  [default: warning]"),
    Flag(("--log-with-timestamp/--log-without-timestamp",), bool, "LOG_HIDE_TIME", "logging.with_timestamp",
         "Show the time in messages.  [default: yes]", _no),
)  # fmt: skip


def options() -> Iterator[click.Option]:
    """The table as click options; a flag that was not given is None."""
    for flag in FLAGS:
        yield click.Option(list(flag.names), type=flag.kind, default=None, metavar=flag.metavar, help=flag.help)


def environment_of(given: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, str]:
    """The variables that flags and file set, under Hora's and Horovod's names.

    >>> environment_of({"fusion_threshold_mb": 2.0}, {"params.cycle_time_ms": 5})["HORA_FUSION_THRESHOLD"]
    '2097152'
    """
    values = {}
    for flag in FLAGS:
        value = given.get(flag.parameter)
        if value is None:
            value = file.get(flag.key)
        if value is not None:
            values[flag.variable] = flag.encode(value)
    return {prefix + name: value for name, value in values.items() for prefix in ("HORA_", "HOROVOD_")}


def read_config_file(path: Path) -> dict[str, Any]:
    """A configuration file in horovodrun's layout, YAML or TOML, as ``section.key`` to value.

    Every key must be known and its value must be one that the flag would take.
    """
    document = _parse(path)
    known = {flag.key: flag for flag in FLAGS}
    values: dict[str, Any] = {}
    for section, content in document.items():
        pairs = content.items() if isinstance(content, dict) else [(None, content)]
        for key, value in pairs:
            name = section if key is None else f"{section}.{key}"
            if name == "controller":
                values[name] = _choice(path, name, value, ("gloo", "mpi", "jsrun"))
            elif name not in known:
                raise UsageError(
                    f"{str(path)!r}: {name!r} is not a known key. The keys are {', '.join(sorted(known))}."
                )
            elif value is not None:
                values[name] = _converted(path, known[name], value)
    return values


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"configuration file {str(path)!r} cannot be read: {reason}. Check the path.") from None
    try:
        if path.suffix == ".toml":
            document: Any = importlib.import_module("tomllib").loads(text)
        else:
            document = importlib.import_module("yaml").safe_load(text) or {}
    except ImportError:
        raise EnvironmentUnfit(
            f"reading {str(path)!r} needs PyYAML, which is not installed. Run 'pip install pyyaml', or write the file "
            "as TOML and name it *.toml."
        ) from None
    except Exception as error:  # each parser has its own
        reason = " ".join(str(error).split())
        raise UsageError(f"configuration file {str(path)!r} is not valid: {reason}. Correct that line.") from None
    if not isinstance(document, dict):
        raise UsageError(f"configuration file {str(path)!r} has no sections. Write for example 'params:'.")
    return document


def _converted(path: Path, flag: Flag, value: Any) -> Any:
    kind = click.types.convert_type(flag.kind)
    try:
        return kind.convert(value, None, None)
    except click.BadParameter as error:
        raise UsageError(f"{str(path)!r}: {flag.key} = {value!r}: {error.format_message()}") from None


def _choice(path: Path, name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise UsageError(f"{str(path)!r}: {name} = {value!r} is not one of {', '.join(allowed)}.")
    return value
