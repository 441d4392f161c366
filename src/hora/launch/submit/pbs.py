"""PBS Pro and OpenPBS: their directives, their variables, and how jobs of a chain are submitted.

Torque differs in one line: it wants ``-l nodes=2:ppn=4`` where PBS wants ``-l select=2:ncpus=4:mpiprocs=4``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hora.errors import UsageError
from hora.launch.submit.bash import word
from hora.launch.submit.order import BatchJob

__all__ = ["PbsScheduler"]


class PbsScheduler:
    """PBS, by ``qsub``. A job's output is redirected by its script: PBS itself shows it only when the job has ended."""

    name = "PBS"
    program = "qsub"
    suffix = ".pbs"
    job_id = "$PBS_JOBID"
    job_name = "$PBS_JOBNAME"
    node_list = '$(sort -u "$PBS_NODEFILE" | paste -sd, -)'
    array_task = "$PBS_ARRAY_INDEX"
    restarts = "${RESTARTS:-0}"

    def check(self, order: BatchJob) -> None:
        if order.qos:
            raise UsageError(f"--qos {order.qos}: PBS has none. Choose a queue with --queue instead.")
        if ":" in order.gpus_per_node:
            raise UsageError(
                f"--gpus-per-node {order.gpus_per_node}: PBS knows no types of GPU by itself. Give the number alone, "
                "and what your site calls the type with --constraint, as in --constraint gpu_model=p100."
            )
        if order.launcher == "srun":
            raise UsageError(
                f"--launcher {order.launcher}: PBS has no srun. Leave it out; 'hora run' starts the workers."
            )
        if order.chain > 1 and order.max_requeues and order.chain_after == "ok":
            raise UsageError(
                "--requeue with --chain: under PBS a job that is run again gets a new id, which the next of the chain "
                "would not wait for. Use --chain N --chain-after any: each job continues where the one before stopped."
            )
        if order.array and order.max_requeues:
            raise UsageError("--requeue with --array: PBS cannot submit a single task of an array again. Drop one.")
        if order.warn and not order.time_s:
            raise UsageError("--signal and --requeue need --time under PBS, to know when to warn.")

    def head(self, order: BatchJob) -> list[str]:
        chunk = [f"select={order.nodes}", f"ncpus={order.tasks_per_node * (order.cpus_per_task or 1)}"]
        chunk.append(f"mpiprocs={order.tasks_per_node}")
        if order.gpus_per_node:
            chunk.append(f"ngpus={order.gpus_per_node}")
        if order.mem_mb:
            chunk.append(f"mem={order.mem_mb}mb")
        if order.constraint:
            chunk.append(order.constraint)
        lines = [f"-N {order.name}", f"-l {':'.join(chunk)}", f"-l place=scatter{':excl' if order.exclusive else ''}"]
        if order.time_s:
            hours, rest = divmod(order.time_s, 3600)
            lines.append(f"-l walltime={hours:02}:{rest // 60:02}:{rest % 60:02}")
        for flag, value in (("-q", order.queue), ("-A", order.account), ("-J", order.array)):
            if value:
                lines.append(f"{flag} {value}")
        folder = order.output_pattern.rpartition("/")[0]
        lines += ["-j oe", f"-o {folder or '.'}/", "-r n"]  # what PBS itself says; never run again behind our back
        return [f"#PBS {line}" for line in [*lines, *order.directives]]

    def arrive(self, order: BatchJob) -> list[str]:
        values = {"%j": "${PBS_JOBID%%.*}", "%A": "${PBS_ARRAY_ID%%[*}", "%a": "$PBS_ARRAY_INDEX"}
        parts = re.split("(%[jAa])", order.output_pattern.replace("%x", order.name))
        path = "".join(f'"{values[part]}"' if i % 2 else word(part) for i, part in enumerate(parts) if part)
        return [
            'cd "$PBS_O_WORKDIR"  # PBS starts jobs in the home directory',
            f"exec >>{path} 2>&1",
        ]

    def once_per_node(self, order: BatchJob) -> list[str]:
        return [
            "once_per_node() {",
            f'    hora run --hosts "{self.node_list}" -- "$@"',
            "}",
        ]

    def launch(self, order: BatchJob) -> str:
        start = "" if order.starts_workers else f"hora run {order.how_many} --"  # takes its hosts from $PBS_NODEFILE
        if not order.warn or not order.time_s:
            return start
        # PBS sends no warning before the time is up; timeout does, and keeps waiting.
        when_s = max(1, order.time_s - order.warn.seconds)
        left_s = f"$((SECONDS < {when_s} ? {when_s} - SECONDS : 1))"
        return f'timeout --foreground --preserve-status --signal=USR1 "{left_s}" {start}'.rstrip()

    def requeue(self, order: BatchJob, script: str) -> list[str]:
        return [f'qsub -W depend=afterany:"$PBS_JOBID" -v RESTARTS=$((restarts + 1)) {word(script)}']

    def submission(self, order: BatchJob, script: str, job: int, after: str | None) -> Sequence[str]:
        command = ["qsub"]
        if order.chain > 1:
            command += ["-v", f"CHAIN_JOB={job}"]
        if after is not None:
            command += ["-W", f"depend=after{order.chain_after}:{after}"]
        return [*command, script]

    def read_id(self, said: str) -> str:
        """
        >>> PbsScheduler().read_id("1234.server\\n"), PbsScheduler().read_id("12[].server")
        ('1234.server', '12[].server')
        """
        found = re.findall(r"^(\d+(?:\[\])?(?:\.\S+)?)\s*$", said, re.MULTILINE)
        return found[-1] if found else ""

    def cancel(self, ids: Sequence[str]) -> str:
        return f"qdel {' '.join(ids)}"
