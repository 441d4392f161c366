"""Checkpoints that survive being killed at any moment. What is in them is the front-end's business."""

from hora.checkpoint.store import Checkpoint, Store

__all__ = ["Checkpoint", "Store"]
