"""``horovod.common``: what its frameworks share."""
