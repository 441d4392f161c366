"""What launcher and agents say to each other: one struct each, msgpack in authenticated frames.

An agent gets all it needs to know (:class:`Bootstrap`) on its standard input, which ssh encrypts and no process list
shows. Over the connection that it then opens only heartbeats, output, signals and ends of workers are sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hora.launch.host.ending import Ending
from hora.wire.frame import WireError

__all__ = [
    "AGENT_SAYS",
    "Bootstrap",
    "EndJob",
    "FromAgent",
    "FromLauncher",
    "Halted",
    "Heartbeat",
    "HostDone",
    "HostReady",
    "HostRefused",
    "Launch",
    "Launched",
    "Output",
    "OutputTaken",
    "Share",
    "Signal",
    "SignalOne",
    "StartWorkers",
    "Started",
    "WorkerEnded",
    "WorkerTask",
    "encode",
    "read_agent",
    "read_launcher",
]  # fmt: skip


AGENT_SAYS = "hora-agent: "  # begins what an agent has to say on its standard error


class WorkerTask(msgspec.Struct, frozen=True, array_like=True):
    """One worker: its rank, its place on its host, and the variables that tell it."""

    rank: int
    local_rank: int
    local_size: int
    environment: Mapping[str, str]


class Share(msgspec.Struct, frozen=True):
    """What one host runs. ``cookie`` marks its processes: it is this host's alone, for two names may be one machine."""

    host: str
    cookie: str
    tasks: tuple[WorkerTask, ...]


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """All that an agent needs to know: where the launcher is, the job's secret, and what to run.

    An agent that was given several shares (srun hands the same input to all) takes the one of its host.
    """

    addresses: tuple[str, ...]
    hub_addresses: tuple[str, ...]
    secret: bytes
    shares: tuple[Share, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    call: bytes | None
    threads_per_worker: int | None
    bind: bool
    connect_s: float
    silence_s: float


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# ---- both ways ----


class Heartbeat(_Message, frozen=True):
    """A sign of life."""


# ---- from the launcher ----


class StartWorkers(_Message, frozen=True):
    """All agents are there: start the workers."""


class Signal(_Message, frozen=True):
    """A signal for every worker. After SIGSTOP the launcher may be stopped itself, and its silence means nothing."""

    number: int


class Launch(_Message, frozen=True):
    """Elastic: start one more worker."""

    task: WorkerTask


class SignalOne(_Message, frozen=True):
    """Elastic: for one worker."""

    rank: int
    number: int


class OutputTaken(_Message, frozen=True):
    """This many bytes of output have been written; as many more may be sent."""

    size: int


class EndJob(_Message, frozen=True):
    """Kill what is left, send what is left, and leave."""


# ---- from an agent ----


class HostReady(_Message, frozen=True):
    """This host is connected."""

    host: str


class HostRefused(_Message, frozen=True):
    """This host cannot do it."""

    text: str


class Started(_Message, frozen=True):
    """The workers run; their processes, in the order of the tasks."""

    pids: tuple[int, ...]


class Launched(_Message, frozen=True):
    """Elastic: this worker runs, as this process."""

    rank: int
    pid: int


class Halted(_Message, frozen=True):
    """Elastic: these workers' processes are stopped at this moment, and no others."""

    ranks: tuple[int, ...]


class Output(_Message, frozen=True):
    """A piece of a stream; an empty one is its end."""

    rank: int
    stream: str
    data: bytes


class WorkerEnded(_Message, frozen=True):
    """A worker has ended."""

    ending: Ending


class HostDone(_Message, frozen=True):
    """Nothing of the job is left on this host."""


FromLauncher = Heartbeat | StartWorkers | Signal | OutputTaken | EndJob | Launch | SignalOne
FromAgent = Heartbeat | HostReady | HostRefused | Started | Output | WorkerEnded | HostDone | Launched | Halted

_encoder = msgspec.msgpack.Encoder()
_from_launcher: msgspec.msgpack.Decoder[FromLauncher] = msgspec.msgpack.Decoder(FromLauncher)
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)


def encode(message: _Message | Bootstrap) -> bytes:
    """The message as bytes.

    >>> read_agent(encode(Started((7, 8))))
    Started(pids=(7, 8))
    """
    return _encoder.encode(message)


def read_launcher(payload: bytes) -> FromLauncher:
    """A message of the launcher; WireError if it is none."""
    try:
        return _from_launcher.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"the launcher's message cannot be read: {error}") from None


def read_agent(payload: bytes) -> FromAgent:
    """A message of an agent; WireError if it is none."""
    try:
        return _from_agent.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"the agent's message cannot be read: {error}") from None
