"""Other hosts: the ssh client, and every host of ``--hosts``, visited for real and all at once; and batch systems.

A probe has stages, and the finding says at which it ended: reach the host, be let in, find the interpreter, find the
same Hora and torch, agree on the time, and connect both ways: to the launcher, and to every other host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hora
from hora.doctor import describe, remote_probe
from hora.doctor.check import Check, CheckResult, Status, not_here, note, ok, problem, warning
from hora.doctor.machine import Machine
from hora.launch.planning.hosts import is_here
from hora.text import time_text
from hora.wire.addresses import candidates

__all__ = ["BATCH", "HOSTS"]

# ---- ssh ----

_PROBE_S = 45.0
_OPTIONS = ("BatchMode=yes", "StrictHostKeyChecking=accept-new", "ConnectTimeout=8", "LogLevel=ERROR")
_BOOT = "import sys; exec(eval(sys.stdin.readline()))"  # the probe's text comes first, as one line
_PINGS = 5
_SKEW_NOTE_S, _SKEW_WARNING_S = 0.1, 2.0

# A sign in what ssh says, what it means, and what to change.
_REFUSALS: tuple[tuple[str, str, str], ...] = (
    ("could not resolve", "its name does not resolve", "Check the spelling, or add it to /etc/hosts or ~/.ssh/config."),
    ("permission denied", "it asks for a password or refuses the key", "ssh-copy-id {host}"),
    (
        "host key verification failed",
        "its host key is not the known one",
        "If it was reinstalled: ssh-keygen -R {host}",
    ),
    ("connection refused", "no ssh server listens there", "Start sshd on it, or give the port in ~/.ssh/config."),
    ("timed out", "it does not answer", "Is it up? Does a firewall drop port 22?"),
    ("no route to host", "there is no way to it", "Is it up and in this network?"),
    ("network is unreachable", "there is no way to it", "Is it up and in this network?"),
)


def ssh_command(environ: Mapping[str, str]) -> list[str]:
    """The ssh client as the launcher calls it: HORA_SSH if it is set, and never asking anything.

    >>> ssh_command({"HORA_SSH": "ssh -F mine"})[:4]
    ['ssh', '-F', 'mine', '-o']
    """
    options = [word for option in _OPTIONS for word in ("-o", option)]
    return [*shlex.split(environ.get("HORA_SSH") or "ssh"), *options, "-T", "-x"]


def client(machine: Machine) -> CheckResult:
    command = ssh_command(machine.environ)[0]
    if machine.which(command) is None:
        told = f"there is no {command!r}; it starts workers on other hosts outside a batch system"
        fix = "Debian: apt install openssh-client"
        if any(not is_here(host) for host in machine.hosts):
            return problem(told, fix, stops=True)
        return not_here(told, fix)
    version = machine.run([command, "-V"], 5.0)
    told = (version.err or version.out).strip().partition(",")[0] or command
    if not machine.hosts:
        told += "; give --hosts h1,h2 to try hosts"
    return ok(told)


def probe_hosts(machine: Machine) -> list[CheckResult]:
    """One finding a host."""
    if not machine.hosts:
        return []
    here = remote_probe.ProbeListener()
    remotes = {host: _RemoteProbe(machine, host) for host in machine.hosts if not is_here(host)}
    try:
        _all_at_once(remote.begin for remote in remotes.values())
        at_home = [(address, here.port, here.greeting) for address in candidates()]
        _all_at_once(partial(remote.meet, at_home, remotes.values()) for remote in remotes.values())
        found = {host: remote.finding() for host, remote in remotes.items()}
    finally:
        for remote in remotes.values():
            remote.close()
        here.close()
    return [found.get(host) or ok("this host", name=host) for host in machine.hosts]


def _all_at_once(calls: Iterable[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _RemoteProbe:
    """A conversation with a remote probe on one host, and what was found there. One that failed says nothing more."""

    def __init__(self, machine: Machine, host: str) -> None:
        self.host = host
        self.facts: dict[str, Any] = {}
        self._machine = machine
        self._failed: CheckResult | None = None
        self._process: subprocess.Popen[str] | None = None
        self._watchdog = threading.Timer(_PROBE_S, self._kill)
        self._began = time.monotonic()
        self._skew_s = 0.0
        self._unreached: list[str] = []  # places that this host could not reach, or that were not reached on it
        self._address = ""

    def begin(self) -> None:
        """Reach it, be let in, start the probe, hear what it found, compare clocks."""
        command = [*ssh_command(self._machine.environ), self.host, shlex.join([self._machine.python, "-c", _BOOT])]
        try:
            self._process = subprocess.Popen(
                command, env=dict(self._machine.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"{command[0]} does not start: {error.strerror}", "Install an ssh client, or correct HORA_SSH.")
            return
        self._watchdog.daemon = True
        self._watchdog.start()
        source = Path(remote_probe.__file__).read_text()
        self._tell(repr(source))
        heard = self._hear()
        if heard is None:
            self._explain_silence()
            return
        self.facts = heard
        rounds = []
        for _ in range(_PINGS):
            before = time.time()
            answer = self._ask({"ask": "time"})
            if answer is None:
                return
            after = time.time()
            rounds.append((after - before, answer["now"] - (before + after) / 2))
        self._skew_s = min(rounds)[1]

    def meet(self, launcher: Sequence[tuple[str, int, str]], remotes: Iterable[_RemoteProbe]) -> None:
        """Try connections: from here to it, and from it to the launcher and to every other host."""
        if self._failed is not None or not self.facts:
            return
        own = [remote_probe.reach(*place) for place in self.places]
        self._address = next((place[0] for place, why in zip(self.places, own, strict=True) if not why), "")
        self._unreached += _none_of("this host", self.host, self.places, own)
        targets = {"this host": list(launcher)} | {g.host: g.places for g in remotes if g is not self and g.facts}
        for host, places in targets.items():
            answer = self._ask({"ask": "reach", "places": places})
            if answer is None:
                return
            self._unreached += _none_of(self.host, host, places, answer["reached"])

    @property
    def places(self) -> list[tuple[str, int, str]]:
        """Where its probe listens."""
        return [(address, self.facts["port"], self.facts["greeting"]) for address in self.facts["addresses"]]

    def finding(self) -> CheckResult:
        return self._failed or self._judge()

    def _judge(self) -> CheckResult:
        facts, name = self.facts, self.host
        own = {"hora": hora.__version__, "torch": describe.version_of("torch")}
        if not facts["hora"]:
            told, fix = f"Hora cannot be imported there: {facts['why']}", "Install it there as it is installed here."
            return problem(told, fix, stops=True, name=name)
        told = f"Hora {facts['hora']}, torch {facts['torch'] or 'missing'}, clock {_signed(self._skew_s)}"
        told += f", {self._address}" if self._address else ""
        if self._unreached:
            fix = "Open the firewall between the hosts, or choose another network with --network-interfaces."
            told = f"{told}; " + "; ".join(self._unreached)
            return problem(told, fix, stops=True, name=name)
        if facts["hora"] != own["hora"]:
            fix = "Install the same version on all hosts."
            told = f"{told}; here it is Hora {own['hora']}"
            return problem(told, fix, stops=True, name=name)
        if facts["torch"] != own["torch"]:
            fix = "Install the same version on all hosts: sums agree, but random numbers and kernels may not."
            return warning(f"{told}; here it is torch {own['torch']}", fix, name=name)
        if facts["core"]:
            told = f"{told}; {facts['core']}"
            fix = "Install Hora there with a C compiler: until then its workers use Gloo among themselves."
            return warning(told, fix, name=name)
        if abs(self._skew_s) > _SKEW_NOTE_S:
            status: Status = "warning" if abs(self._skew_s) > _SKEW_WARNING_S else "note"
            fix = "Run chrony or another NTP client on all hosts: logs and timelines do not line up otherwise."
            return CheckResult(name=name, status=status, told=told, fix=fix)
        return ok(f"{told}; connections work both ways", name=name)

    # ---- the conversation ----

    def _tell(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone; hearing nothing tells
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _hear(self) -> dict[str, Any] | None:
        """The next line of JSON; what a login script prints before it is passed over."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    def _ask(self, question: Mapping[str, object]) -> dict[str, Any] | None:
        self._tell(json.dumps(question))
        answer = self._hear()
        if answer is None:
            self._explain_silence()
        return answer

    def _explain_silence(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        took = time.monotonic() - self._began
        self._kill_if_running()
        said = self._process.stderr.read().strip()
        code = self._process.wait()
        last = said.splitlines()[-1].strip() if said else f"exit code {code}"
        if took >= _PROBE_S - 1:
            told, fix = f"no answer within {_PROBE_S:.0f} s: {last}", "Is it overloaded, or its home directory stuck?"
        elif code == 255:
            told, fix = next(
                ((f"{meaning}: {last}", fix) for sign, meaning, fix in _REFUSALS if sign in said.lower()),
                (f"ssh failed: {last}", "Try 'ssh -o BatchMode=yes {host} true'; it must not ask anything."),
            )
        elif code in (126, 127):
            told = f"there is no interpreter {self._machine.python} there: {last}"
            fix = "Install the same environment at the same path, or put it on a shared file system."
        else:
            told, fix = f"the interpreter there failed with exit code {code}: {last}", "Compare the two installations."
        self._fail(told, fix.format(host=self.host))

    def _fail(self, told: str, fix: str) -> None:
        self._failed = problem(told, fix, stops=True, name=self.host)

    def _kill_if_running(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the conversation; the probe ends with its input."""
        self._watchdog.cancel()
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._kill_if_running()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _none_of(origin: str, target: str, places: Sequence[tuple[str, int, str]], reasons: Sequence[str]) -> list[str]:
    """A sentence if none of the places was reached.

    >>> _none_of("h1", "h2", [("10.0.0.2", 4000, "x")], ["Connection refused"])
    ['h1 cannot connect to h2 (10.0.0.2: Connection refused)']
    >>> _none_of("h1", "h2", [("10.0.0.2", 4000, "x")], [""])
    []
    """
    if not places or any(not reason for reason in reasons):
        return []
    tried = ", ".join(f"{place[0]}: {reason}" for place, reason in zip(places, reasons, strict=True))
    return [f"{origin} cannot connect to {target} ({tried})"]


def _signed(seconds: float) -> str:
    """
    >>> _signed(-0.25), _signed(0.00001)
    ('250 ms behind', '10.0 µs ahead')
    """
    return f"{time_text(abs(seconds))} {'behind' if seconds < 0 else 'ahead'}"


HOSTS = (
    Check("ssh", "looked for the client", client),
    Check("hosts", "visited each host over ssh: interpreter, versions, clock, connections", probe_hosts, _PROBE_S + 30),
)


# ---- batch systems ----

_ANSWER_S = 10.0


def slurm(machine: Machine) -> CheckResult:
    env = machine.environ
    job, srun = env.get("SLURM_JOB_ID"), machine.which("srun")
    if srun is None:
        if job:
            told = f"this is inside Slurm job {job}, but there is no srun on PATH"
            fix = "Add Slurm's directory of commands to PATH, or load its module; in a container, mount it."
            return problem(told, fix)
        return not_here("there is no srun")
    version = machine.run([srun, "--version"], _ANSWER_S).out.strip() or "Slurm"
    if not job:
        return _outside(machine, version)
    nodes, tasks = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES", "?"), env.get("SLURM_NTASKS", "?")
    told = f"{version}, inside job {job}: {nodes} nodes, {tasks} tasks"
    if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env and env.get("SLURM_STEP_ID", "").isdigit():
        return ok(f"{told}; this is task {env['SLURM_PROCID']} of a step")
    ran = machine.run([srun, "--overlap", "-N1", "-n1", "-t", "1", "true"], _ANSWER_S)
    if ran.code == 0:
        return ok(f"{told}; srun starts a task in {ran.seconds:.1f} s")
    return problem(
        f"{told}; srun does not start a task: {ran.last}",
        "Another step may hold all resources (srun --overlap), or slurmd on the node is down (sinfo -N).",
    )


def _outside(machine: Machine, version: str) -> CheckResult:
    sinfo = machine.which("sinfo")
    ran = machine.run([sinfo, "--noheader", "--format=%P %D %t"], _ANSWER_S) if sinfo else None
    if ran is not None and ran.code == 0:
        partitions = {line.split()[0].rstrip("*") for line in ran.out.splitlines() if line.split()}
        told = f"{version}, outside any job; the controller answers: partitions {', '.join(sorted(partitions))}"
        return ok(told)
    why = ran.last if ran is not None else "there is no sinfo"
    return note(
        f"{version} is installed, but its controller does not answer: {why}",
        "Run this on a login node of the cluster, or set SLURM_CONF.",
    )


def pbs(machine: Machine) -> CheckResult:
    env, qsub = machine.environ, machine.which("qsub")
    job, nodes = env.get("PBS_JOBID"), env.get("PBS_NODEFILE", "")
    if job:
        text = machine.read(nodes) if nodes else None
        if text is None:
            told = f"this is inside PBS job {job}, but its list of nodes, PBS_NODEFILE={nodes!r}, cannot be read"
            return problem(told, "Give the hosts with -H, or pass the variable on.")
        hosts = text.split()
        told = f"inside PBS job {job}: {len(hosts)} slots on {len(set(hosts))} hosts"
        return ok(told)
    if qsub is None:
        return not_here("there is no qsub")
    ran = machine.run([machine.which("qstat") or "qstat", "-B"], _ANSWER_S)
    if ran.code == 0:
        return ok("qsub is here and the server answers; outside any job")
    fix = "Run this on a login node of the cluster."
    return note(f"qsub is here, but the server does not answer: {ran.last}", fix)


BATCH = (
    Check("slurm", "asked the controller; inside a job, started a task with srun", slurm, 25.0),
    Check("pbs", "asked the server; inside a job, read its list of nodes", pbs, 15.0),
)
