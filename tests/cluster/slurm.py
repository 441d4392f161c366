"""A real Slurm whose nodes are the hosts of a cluster: munged and slurmctld on ``login``, a slurmd on every host."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Cluster, Host, missing_for_hosts
from tests.launch.jobs import wait_until

__all__ = ["Slurm", "missing_for_slurm"]

START_S = 40.0
CORES = 4  # claimed by every node, whatever this machine has
_ASK_S = 0.2  # between two questions to Slurm, each of which is a process

# Node failures are noticed as fast as Slurm can, and a requeued job starts as soon as it can: not before what its first
# run was allowed to start with has expired (cred_expire). Nothing is bound to cores or groups that this machine may not
# have.
_CONFIGURATION = """
ClusterName=test
SlurmctldHost=login({login})
SlurmUser=root
AuthInfo=socket={place}/munge.sock,cred_expire=5
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=2,permit_job_expansion
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
JobRequeue=1
MinJobAge=300
KillWait=5
SlurmdTimeout=8
NodeName=DEFAULT CPUs={cores} RealMemory=4000
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=YES
"""


def missing_for_slurm() -> str:
    """Why there can be no Slurm here, or nothing."""
    return missing_for_hosts("munged", "slurmctld", "slurmd", "sbatch", "srun")


class Slurm:
    """The daemons of a cluster. They end with its hosts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.place = cluster.place / "slurm"
        (self.place / "state").mkdir(parents=True)
        self.conf = self.place / "slurm.conf"
        nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address}" for host in cluster.hosts)
        self.conf.write_text(
            _CONFIGURATION.format(login=cluster.login.address, place=self.place, cores=CORES, nodes=nodes)
        )
        for host in cluster:
            host.environment["SLURM_CONF"] = str(self.conf)
        key = self.place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key-file": key, **{f"{kind}-file": self.place / f"munge.{kind}" for kind in ("pid", "log", "seed")}}
        options = [f"--{name}={path}" for name, path in files.items()]
        self._daemon(cluster.login, "munged", "--foreground", "--force", f"--socket={self.place}/munge.sock", *options)
        wait_until((self.place / "munge.sock").exists, START_S, "munged")
        self._daemon(cluster.login, "slurmctld", "-D", "-c")
        self._nodes = {host.name: self._slurmd(host) for host in cluster.hosts}
        self.wait_until_idle()

    def kill_slurmd(self, host: Host) -> None:
        """Kill the daemon alone: what it started lives on."""
        [pid] = [pid for pid in host.pids().values() if _command(pid)[:1] == ["slurmd"]]
        os.kill(pid, 9)
        self._nodes.pop(host.name).wait(START_S)

    def mend(self) -> None:
        """Start again what was killed, and wait until every node is free."""
        for host in self.cluster.hosts:
            if host.name not in self._nodes:
                self._nodes[host.name] = self._slurmd(host)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        everybody = {host.name for host in self.cluster.hosts}
        login = self.cluster.login

        def idle() -> bool:
            said = login.run(["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N %T"], START_S).stdout
            return set(re.findall(r"^(\S+) idle$", said, re.MULTILINE)) == everybody

        try:
            wait_until(idle, START_S, "every node of Slurm to be idle", every_s=_ASK_S)
        except AssertionError as error:
            logs = "".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self.place.glob("*.log"))
            raise AssertionError(f"{error}\n{logs}") from None

    # ---- jobs ----

    def sbatch(self, script: str, *options: str, **more: Any) -> Job:
        """Submit a script from ``login``; the job's output goes to a file of this Slurm's."""
        number = len(list(self.place.glob("script-*")))
        path = self.place / f"script-{number}"
        path.write_text(script)
        output = self.place / f"output-{number}"
        command = ["sbatch", "--parsable", f"--output={output}", "--open-mode=append", *options, str(path)]
        said = self.cluster.login.run(command, START_S, check=True, **more).stdout
        return Job(self, int(said.strip().splitlines()[-1]), output)

    def salloc(self, options: Sequence[str], command: Sequence[str], timeout_s: float) -> str:
        """Run a command in an interactive allocation, on ``login``, to its end."""
        return self.cluster.login.run(["salloc", "--quiet", *options, *command], timeout_s).stdout

    def _slurmd(self, host: Host) -> subprocess.Popen[str]:
        (self.place / f"spool-{host.name}").mkdir(exist_ok=True)
        return self._daemon(host, "slurmd", "-D", "-N", host.name)

    def _daemon(self, host: Host, *command: str) -> subprocess.Popen[str]:
        return host.daemon(command, self.place / f"{command[0]}-{host.name}.err.log")


class Job:
    """A job that was submitted."""

    def __init__(self, slurm: Slurm, number: int, output: Path) -> None:
        self._slurm, self.number, self._output = slurm, number, output

    @property
    def state(self) -> str:
        """As Slurm says, or GONE if it has forgotten the job. A controller too busy to answer says nothing: UNKNOWN."""
        return self._ask().get("JobState", "UNKNOWN")

    @property
    def exit_code(self) -> int:
        """Of the batch script; 128 + the signal if one ended it."""
        code, _, number = self._ask()["ExitCode"].partition(":")
        return 128 + int(number) if number != "0" else int(code)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def wait(self, deadline_s: float, state: str = "") -> str:
        """Wait for the job to end, or to come into ``state``; its output so far."""
        over = {state} if state else {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "GONE"}
        try:
            what = f"job {self.number} to be {' or '.join(sorted(over))}"
            wait_until(lambda: self.state in over, deadline_s, what, every_s=_ASK_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.state} and said:\n{self.output}") from None
        return self.output

    def wait_for(self, text: str, deadline_s: float) -> None:
        """Wait until the job has printed ``text``."""
        try:
            wait_until(lambda: text in self.output, deadline_s, f"job {self.number} to print {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.state} and said:\n{self.output}") from None

    def signal(self, name: str, *to: str) -> None:
        """As sbatch's ``--signal`` does it: to all steps, or with ``--batch`` to the script alone."""
        self._slurm.cluster.login.run(["scancel", *to, f"--signal={name}", str(self.number)], START_S, check=True)

    def cancel(self) -> None:
        self._slurm.cluster.login.run(["scancel", str(self.number)], START_S)

    def _ask(self) -> dict[str, str]:
        said = self._slurm.cluster.login.run(["scontrol", "show", "job", str(self.number)], START_S).stdout
        if "Invalid job id" in said:
            return {"JobState": "GONE"}
        return dict(re.findall(r"(\w+)=(\S*)", said))


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
