"""``horovod.runner.launch``: the command ``horovodrun``, and what was built."""

from __future__ import annotations

import sys

from ..common.util import ccl_built, ddl_built, gloo_built, mpi_built, nccl_built

__all__ = ["ccl_built", "ddl_built", "gloo_built", "mpi_built", "nccl_built", "run_commandline"]


def run_commandline() -> None:
    """``horovodrun`` is ``hora run``, which takes its flags."""
    from hora.cli.main import main

    main(["run", "--as-horovod", *sys.argv[1:]])
