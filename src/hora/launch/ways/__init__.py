"""The ways to start workers, by name. Each is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence

from hora.launch.job import LaunchMethod
from hora.launch.planning.pick import On

__all__ = ["make_way"]


def make_way(
    on: On,
    *,
    interfaces: Sequence[str] = (),
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    export: Sequence[str] = (),
    mpi_args: str = "",
    binding_args: str = "",
) -> LaunchMethod:
    """The way called ``on``, with what the user has to say about it.

    >>> make_way("local").name, make_way("ssh").name
    ('local', 'ssh')
    """
    if on == "local":
        from hora.launch.ways.here import LocalLaunch

        return LocalLaunch()
    if on == "mpi":
        from hora.launch.ways.mpi import MpiLaunch

        ssh = [*(["-p", str(ssh_port)] if ssh_port else []), *(["-i", ssh_identity_file] if ssh_identity_file else [])]
        return MpiLaunch(interfaces=interfaces, ssh_arguments=ssh, export=export, args=mpi_args, binding=binding_args)
    from hora.launch.ways.remote import RemoteLaunch

    if on == "slurm":
        from hora.launch.starters.slurm import SlurmStarter

        return RemoteLaunch(SlurmStarter(), interfaces=interfaces)
    if on == "ray":
        from hora.launch.starters.ray import RayStarter

        return RemoteLaunch(RayStarter(), interfaces=interfaces)
    from hora.launch.starters.ssh import SshStarter

    return RemoteLaunch(
        SshStarter(port=ssh_port, identity_file=ssh_identity_file, export=export), interfaces=interfaces
    )
