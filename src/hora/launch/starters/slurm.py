"""Agents by srun, inside an allocation: one step with one task a node, no ssh. Slurm passes on standard input and
environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hora.launch.starters.starter import AgentCarrier, Command, agent_command, explain_end, shown

__all__ = ["SlurmStarter"]

_STEP_S = 5.0  # for srun to end after its tasks; if it were ended, Slurm would call the step cancelled


class SlurmStarter:
    """Reaches the nodes of the allocation that this process is in."""

    name = "slurm"

    def environment(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Everything but what Slurm says of this task: the agent's own is right for its node."""
        return {name: value for name, value in environment.items() if not name.startswith(("SLURM_", "SLURMD_"))}

    def commands(self, hosts: Sequence[str]) -> list[tuple[str, str]]:
        return [(", ".join(hosts), shown(self._command(hosts)))]

    def start(self, hosts: Sequence[str]) -> list[AgentCarrier]:
        return [Command(hosts, self._command(hosts), leave_s=_STEP_S)]

    def explain(self, host: str, code: int, said: str) -> str:
        return explain_end(host, "srun", code, said)

    def _command(self, hosts: Sequence[str]) -> list[str]:
        return [
            "srun",
            f"--nodes={len(hosts)}",
            f"--ntasks={len(hosts)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(hosts)}",
            "--overlap",  # the batch script holds the same cores
            "--cpu-bind=none",  # the agent shares them out
            "--mpi=none",
            "--kill-on-bad-exit=0",
            "--export=ALL",
            "--input=all",
            *agent_command(),
        ]
