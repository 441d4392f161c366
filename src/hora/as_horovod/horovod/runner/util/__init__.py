"""``horovod.runner.util``: the one helper of Horovod's launcher that its test suite imports."""
