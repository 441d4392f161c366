"""An sshd on every host, and a key that opens all of them: what a cluster's users have set up.

The client's configuration is put where all clients look, ``/etc/ssh/ssh_config``, on these hosts only; the user's own
is left alone. Host keys are known in advance, so that nothing needs to be switched off.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.hosts import Cluster, Host, missing_for_hosts, which
from tests.launch.jobs import wait_until

__all__ = ["Sshd", "missing_for_ssh"]

START_S = 20.0

_CLIENT = """
Host *
  IdentityFile {place}/id
  IdentitiesOnly yes
  UserKnownHostsFile {place}/known_hosts
"""
_SERVER = """
Port 22
HostKey {place}/host
PidFile none
AuthorizedKeysFile {place}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
MaxStartups 100
"""


def missing_for_ssh() -> str:
    """Why there can be no sshd here, or nothing."""
    return missing_for_hosts("sshd", "ssh", "ssh-keygen")


class Sshd:
    """The daemons of a cluster. They end with its hosts."""

    def __init__(self, cluster: Cluster) -> None:
        self.place = cluster.place / "ssh"
        self.place.mkdir(mode=0o700)
        for name in ("host", "id", "stranger"):  # the last is a key that nobody knows
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.place / name], check=True)
        public = {name: (self.place / f"{name}.pub").read_text() for name in ("host", "id")}
        (self.place / "authorized_keys").write_text(public["id"])
        known = [f"{host.name},{host.address} {public['host']}" for host in cluster]
        (self.place / "known_hosts").write_text("".join(known))
        (self.place / "ssh_config").write_text(_CLIENT.format(place=self.place))
        (self.place / "sshd_config").write_text(_SERVER.format(place=self.place))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd insists on shutting itself in
        for host in cluster:
            host.bind(self.place / "ssh_config", "/etc/ssh/ssh_config")
        for host in cluster.hosts:
            self.start(host)
        for host in cluster.hosts:
            wait_until(lambda host=host: self._answers(cluster.login, host), START_S, f"sshd on {host.name}")

    def start(self, host: Host) -> subprocess.Popen[str]:
        # Sessions outlive the daemon, as on a real host: it leaves them alone when it is told to end.
        command = [which("sshd") or "sshd", "-D", "-e", "-f", self.place / "sshd_config"]
        return host.daemon(command, self.place / f"{host.name}.log")

    def _answers(self, login: Host, host: Host) -> bool:
        return login.run(["ssh", "-o", "BatchMode=yes", host.name, "true"], START_S).returncode == 0
