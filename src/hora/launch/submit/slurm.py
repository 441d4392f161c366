"""Slurm: its directives, its variables, and how jobs of a chain are submitted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hora.launch.submit.bash import word
from hora.launch.submit.order import BatchJob

__all__ = ["SlurmScheduler"]


class SlurmScheduler:
    """Slurm, by ``sbatch``; written for Slurm 20.11 and later."""

    name = "Slurm"
    program = "sbatch"
    suffix = ".sbatch"
    job_id = "$SLURM_JOB_ID"
    job_name = "$SLURM_JOB_NAME"
    node_list = "$SLURM_JOB_NODELIST"
    array_task = "$SLURM_ARRAY_TASK_ID"
    restarts = "${SLURM_RESTART_COUNT:-0}"

    def check(self, order: BatchJob) -> None:
        """Slurm can do it all."""

    def head(self, order: BatchJob) -> list[str]:
        values = {
            "job-name": order.name,
            "nodes": order.nodes if order.fewest_nodes == order.nodes else f"{order.fewest_nodes}-{order.nodes}",
            "ntasks-per-node": order.tasks_per_node,
            "cpus-per-task": order.cpus_per_task,
            "gres": order.gpus_per_node and f"gpu:{order.gpus_per_node}",
            "mem": None if order.mem_mb is None else f"{order.mem_mb}M" if order.mem_mb else "0",
            "time": order.time_s and _clock(order.time_s),
            "partition": order.queue,
            "account": order.account,
            "qos": order.qos,
            "constraint": order.constraint,
            "array": order.array,
            "output": order.output_pattern,
        }
        lines = [f"--{name}={value}" for name, value in values.items() if value not in (None, "")]
        if order.exclusive:
            lines.append("--exclusive")
        if order.elastic:
            lines.append("--no-kill")  # a node that fails is taken from the job, and the others continue
        if order.max_requeues:
            lines += ["--requeue", "--open-mode=append"]  # a job that is run again continues in the same file
        else:
            lines.append("--no-requeue")  # sites may requeue by default; a script that cannot resume would start anew
        if order.warn:
            lines.append(
                f"--signal=B:{order.warn.signal}@{order.warn.seconds}"
            )  # B: to this script, which passes it on
        return [f"#SBATCH {line}" for line in [*lines, *order.directives]]

    def arrive(self, order: BatchJob) -> list[str]:
        return []  # Slurm starts a job where it was submitted

    def once_per_node(self, order: BatchJob) -> list[str]:
        return [
            "once_per_node() {",
            '    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\',
            '        --kill-on-bad-exit=1 "$@"',
            "}",
        ]

    def launch(self, order: BatchJob) -> str:
        if order.starts_workers:
            return ""
        if order.launcher in ("auto", "run") and not order.in_each_worker:
            return f"hora run {order.how_many} --"  # finds itself in the allocation
        cpus = f" --cpus-per-task={order.cpus_per_task} --cpu-bind=cores" if order.cpus_per_task else ""
        bundle = f" --container={word(order.container)}" if order.container_runtime == "slurm" else ""
        return f"srun --ntasks={order.tasks} --kill-on-bad-exit=1 --label{cpus}{bundle} --"

    def requeue(self, order: BatchJob, script: str) -> list[str]:
        return ['scontrol requeue "$SLURM_JOB_ID"  # under the same id, so that what depends on it keeps waiting']

    def submission(self, order: BatchJob, script: str, job: int, after: str | None) -> Sequence[str]:
        command = ["sbatch", "--parsable"]
        if order.chain > 1:
            command.append(f"--export=ALL,CHAIN_JOB={job}")
        if after is not None:
            command += [f"--dependency=after{order.chain_after}:{after}", "--kill-on-invalid-dep=yes"]
        return [*command, script]

    def read_id(self, said: str) -> str:
        """The last line that is an id: sites print notes before it, federations a cluster after it.

        >>> SlurmScheduler().read_id("note: welcome\\n1234;cluster\\n")
        '1234'
        """
        found = re.findall(r"^(\d+)(?:;\S+)?\s*$", said, re.MULTILINE)
        return found[-1] if found else ""

    def cancel(self, ids: Sequence[str]) -> str:
        return f"scancel {' '.join(ids)}"


def _clock(seconds: int) -> str:
    """A time as Slurm writes it.

    >>> _clock(5400), _clock(129600)
    ('01:30:00', '1-12:00:00')
    """
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
