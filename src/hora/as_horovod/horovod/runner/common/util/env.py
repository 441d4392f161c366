"""``horovod.runner.common.util.env``: what the environment says of this worker."""

from __future__ import annotations

from hora.config import env
from hora.config.world import detect

__all__ = ["get_env_rank_and_size"]


def get_env_rank_and_size() -> tuple[int, int]:
    """This worker's rank and how many there are, before ``init``; 0 and 1 if nothing launched it."""
    world = detect(env.environ())
    return world.rank, world.size
