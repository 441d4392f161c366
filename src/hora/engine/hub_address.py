"""The address of a hub in a file, for workers on several hosts that another launcher started.

The file says where the hub listens, and has the job's secret. It is in a directory that the hosts share, only this user
can read it, and its name is derived from the job and the members. It is removed once all workers have connected.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from hora.config.world import World
from hora.errors import EnvironmentUnfit

__all__ = ["HubAddress", "address_file"]


class HubAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where a hub is: its host's name, for messages; its addresses, as ``host:port``; and what it wants to be shown."""

    host: str
    addresses: tuple[str, ...]
    secret: bytes

    def put_up(self, path: Path) -> None:
        """Make it readable at ``path``; whatever was there before is replaced. Raises OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{self.host}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())  # a file server shows it to others only then
        draft.rename(path)

    @staticmethod
    def read(path: Path) -> HubAddress | None:
        """What is there; None if that is nothing, or nothing of this user's."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            os.listdir(path.parent)  # a file server's client may remember that the file was not there
            with open(
                os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"
            ) as file:  # nobody's pipe holds us up
                about = os.fstat(file.fileno())
                if about.st_uid == os.getuid() and not about.st_mode & 0o077:
                    return msgspec.json.decode(file.read(), type=HubAddress)
        return None


def address_file(world: World, members: tuple[int, ...]) -> Path:
    """Where the notice of these members is.

    >>> one, other = (World(job_key=f"slurm-{job}", rendezvous_dir="/shared", size=2) for job in (7, 8))
    >>> address_file(one, (0, 1)) == address_file(other, (0, 1))
    False
    """
    if not world.job_key:
        raise EnvironmentUnfit(
            f"{world.size} workers of {world.launcher} are on several hosts ({world.local_size} on {world.host}), and "
            "it gives their job no name by which they could find each other. Start them with hora run --on mpi."
        )
    digest = hashlib.blake2b(repr((world.job_key, members)).encode(), digest_size=12).hexdigest()
    folder = Path(world.rendezvous_dir) if world.rendezvous_dir else Path.home() / ".cache" / "hora"
    return folder / f"{digest}.hub"
