"""``horovod.runner.common.util``: the one module of it that Horovod's test suite imports."""
