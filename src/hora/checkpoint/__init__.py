"""Checkpoints that survive being killed at any moment. What is in them is up to the front-end."""

from hora.checkpoint.store import Checkpoint, CheckpointStore

__all__ = ["Checkpoint", "CheckpointStore"]
