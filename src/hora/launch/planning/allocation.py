"""What a batch system has given this process: hosts, and how many workers each may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hora.config.nodelist import expand, expand_counts
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.planning.hosts import Host

__all__ = ["Allocation", "find_allocation"]


class Allocation(NamedTuple):
    """``system`` is its name; ``more`` says how to ask it for more workers."""

    system: str
    hosts: tuple[Host, ...]
    more: str


def find_allocation(env: Mapping[str, str]) -> Allocation | None:
    """The allocation that the environment describes, if any.

    >>> found = find_allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"})
    >>> found.system, found.hosts
    ('Slurm', (Host(name='h1', slots=2), Host(name='h2', slots=2)))
    """
    nodes = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    if env.get("SLURM_JOB_ID") and nodes:
        return _slurm(env, nodes)
    if env.get("PBS_NODEFILE"):
        more = "Ask qsub for more, like '-l select=2:ncpus=8:mpiprocs=4'"
        return Allocation("PBS", _names_in(Path(env["PBS_NODEFILE"]), "PBS_NODEFILE"), more)
    more = "Ask bsub for more with -n"
    if env.get("LSB_DJOB_HOSTFILE"):
        return Allocation("LSF", _names_in(Path(env["LSB_DJOB_HOSTFILE"]), "LSB_DJOB_HOSTFILE"), more)
    if env.get("LSB_MCPU_HOSTS"):
        words = env["LSB_MCPU_HOSTS"].split()
        if len(words) % 2 or not all(word.isdigit() for word in words[1::2]):
            raise EnvironmentUnfit(
                f"LSB_MCPU_HOSTS={env['LSB_MCPU_HOSTS']!r}, set by LSF, cannot be read: it should look like "
                "'h1 4 h2 4'. Give the hosts yourself with -H."
            )
        hosts = tuple(Host(name, int(slots)) for name, slots in zip(words[::2], words[1::2], strict=True))
        return Allocation("LSF", hosts, more)
    return None


def _slurm(env: Mapping[str, str], nodes: str) -> Allocation:
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")
    step = env.get("SLURM_STEP_ID", "")
    if step.isdigit() and int(step) < 0xFFFFFFF0 and tasks.isdigit() and int(tasks) > 1:
        raise EnvironmentUnfit(
            f"hora run was itself started by srun, in {tasks} tasks, so each of them would start a whole job. "
            "Call hora run once, without srun; or start the script itself with srun, without hora run."
        )
    try:
        names = expand(nodes)
        counts = expand_counts(env.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
    except UsageError as error:
        raise EnvironmentUnfit(f"what Slurm says of its allocation cannot be read: {error}") from None
    if len(names) != len(counts):
        raise EnvironmentUnfit(
            f"Slurm names {len(names)} nodes (SLURM_JOB_NODELIST={nodes}) but lists the tasks of {len(counts)} "
            f"(SLURM_TASKS_PER_NODE={env.get('SLURM_TASKS_PER_NODE')}). Variables of two jobs are mixed; give the "
            "hosts yourself with -H."
        )
    hosts = tuple(Host(name, count) for name, count in zip(names, counts, strict=True))
    return Allocation("Slurm", hosts, "Ask sbatch or salloc for more with --ntasks or --ntasks-per-node")


def _names_in(path: Path, variable: str) -> tuple[Host, ...]:
    try:
        names = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise EnvironmentUnfit(
            f"the host file {str(path)!r} of this allocation ({variable}) cannot be read: {reason}. Give the hosts "
            "yourself with -H."
        ) from None
    if not names:
        raise EnvironmentUnfit(f"the host file {str(path)!r} of this allocation ({variable}) is empty. Use -H.")
    return tuple(Host(name, count) for name, count in Counter(names).items())
