"""The settings and their defaults. ``env.VARIABLES`` says what each field means and which variable sets it."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["PREEMPTED_EXIT_CODE", "JoinAverage", "LogLevel", "NonFinite", "Settings", "Transport"]

PREEMPTED_EXIT_CODE = 75
"""The exit code of a script that saved its state because its job is preempted: sysexits.h's "try again later"."""

JoinAverage = Literal["all", "active"]
NonFinite = Literal["off", "warn", "stop", "skip"]
LogLevel = Literal["trace", "debug", "info", "warning", "error", "fatal"]
Transport = Literal["auto", "shm", "tcp", "ucx", "gloo", "mpi", "shm+gloo"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's tunables. Immutable; make another with ``msgspec.structs.replace``.

    >>> Settings().fusion_bytes
    134217728
    >>> Settings(start_timeout_s=30).start_deadline_s(64)
    94.0
    """

    # Moving data
    transport: Transport = "auto"
    hierarchical: bool = True
    fusion_bytes: int = 128 << 20
    disable_group_fusion: bool = False
    cycle_time_ms: float = 1.0
    cache_capacity: int = 1024
    spin_us: int = -1
    arena_bytes: int = 0
    thread_affinity: tuple[int, ...] = ()
    gloo_iface: str = ""
    gloo_timeout_s: float = 30.0

    # Meaning
    strict: bool = False
    join_average: JoinAverage = "all"

    # Deadlines
    start_timeout_s: float = 30.0
    host_timeout_s: float = 10.0
    stopped_timeout_s: float = 1.5
    stall_check: bool = True
    stall_warn_s: float = 20.0
    stall_fail_s: float = 600.0

    # Training
    bucket_bytes: int = 8 << 20
    shared_gradients: bool = True
    nonfinite: NonFinite = "warn"
    divergence_every: int = 100

    # Telling
    summary: bool = False
    log_level: LogLevel = "warning"
    log_hide_time: bool = False
    timeline: str = ""
    timeline_mark_cycles: bool = False
    timeline_max_bytes: int = 1 << 30

    def start_deadline_s(self, size: int) -> float:
        """How long ``init`` waits for ``size`` workers: many on few cores take longer to import their framework."""
        return self.start_timeout_s + float(size)
