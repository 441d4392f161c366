"""``horovod.runner.common``: what its launcher and its workers share."""
