"""The ways to start workers, by name. Each is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence

from hora.launch.job import Way
from hora.launch.pick import On

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
) -> Way:
    """The way called ``on``, with what the user has to say about it.

    >>> make_way("local").name, make_way("ssh").name
    ('local', 'ssh')
    """
    if on == "local":
        from hora.launch.here import Here

        return Here()
    if on == "mpi":
        from hora.launch.mpi import Mpi

        ssh = [*(["-p", str(ssh_port)] if ssh_port else []), *(["-i", ssh_identity_file] if ssh_identity_file else [])]
        return Mpi(interfaces=interfaces, ssh_arguments=ssh, export=export, args=mpi_args, binding=binding_args)
    from hora.launch.remote import Remote

    if on == "slurm":
        from hora.launch.slurm import Slurm

        return Remote(Slurm(), interfaces=interfaces)
    if on == "ray":
        from hora.launch.ray import Ray

        return Remote(Ray(), interfaces=interfaces)
    from hora.launch.ssh import Ssh

    return Remote(Ssh(port=ssh_port, identity_file=ssh_identity_file, export=export), interfaces=interfaces)
