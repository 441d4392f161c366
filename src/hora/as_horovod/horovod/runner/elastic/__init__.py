"""``horovod.runner.elastic``: where an elastic job may run."""
