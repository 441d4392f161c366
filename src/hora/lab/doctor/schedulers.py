"""The room of batch systems: Slurm and PBS. Are their commands here, do they answer, are we inside an allocation?"""

from __future__ import annotations

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine

__all__ = ["CHECKS"]

_ANSWER_S = 10.0


def slurm(machine: Machine) -> Finding:
    env = machine.environ
    job, srun = env.get("SLURM_JOB_ID"), machine.which("srun")
    if srun is None:
        if job:
            told = f"this is inside Slurm job {job}, but there is no srun on PATH"
            fix = "Add Slurm's directory of commands to PATH, or load its module; in a container, mount it."
            return Finding(name="slurm", status="problem", told=told, fix=fix)
        return Finding(name="slurm", status="not here", told="there is no srun")
    version = machine.run([srun, "--version"], _ANSWER_S).out.strip() or "Slurm"
    if not job:
        return _outside(machine, version)
    nodes, tasks = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES", "?"), env.get("SLURM_NTASKS", "?")
    told = f"{version}, inside job {job}: {nodes} nodes, {tasks} tasks"
    if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env and env.get("SLURM_STEP_ID", "").isdigit():
        return Finding(name="slurm", status="ok", told=f"{told}; this is task {env['SLURM_PROCID']} of a step")
    ran = machine.run([srun, "--overlap", "-N1", "-n1", "-t", "1", "true"], _ANSWER_S)
    if ran.code == 0:
        return Finding(name="slurm", status="ok", told=f"{told}; srun starts a task in {ran.seconds:.1f} s")
    return Finding(
        name="slurm",
        status="problem",
        told=f"{told}; srun does not start a task: {ran.last}",
        fix="Another step may hold all resources (srun --overlap), or slurmd on the node is down (sinfo -N).",
    )


def _outside(machine: Machine, version: str) -> Finding:
    sinfo = machine.which("sinfo")
    ran = machine.run([sinfo, "--noheader", "--format=%P %D %t"], _ANSWER_S) if sinfo else None
    if ran is not None and ran.code == 0:
        partitions = {line.split()[0].rstrip("*") for line in ran.out.splitlines() if line.split()}
        told = f"{version}, outside any job; the controller answers: partitions {', '.join(sorted(partitions))}"
        return Finding(name="slurm", status="ok", told=told, fix="")
    why = ran.last if ran is not None else "there is no sinfo"
    return Finding(
        name="slurm",
        status="note",
        told=f"{version} is installed, but its controller does not answer: {why}",
        fix="Run this on a login node of the cluster, or set SLURM_CONF.",
    )


def pbs(machine: Machine) -> Finding:
    env, qsub = machine.environ, machine.which("qsub")
    job, nodes = env.get("PBS_JOBID"), env.get("PBS_NODEFILE", "")
    if job:
        text = machine.read(nodes) if nodes else None
        if text is None:
            told = f"this is inside PBS job {job}, but its list of nodes, PBS_NODEFILE={nodes!r}, cannot be read"
            return Finding(
                name="pbs", status="problem", told=told, fix="Give the hosts with -H, or pass the variable on."
            )
        hosts = text.split()
        told = f"inside PBS job {job}: {len(hosts)} slots on {len(set(hosts))} hosts"
        return Finding(name="pbs", status="ok", told=told)
    if qsub is None:
        return Finding(name="pbs", status="not here", told="there is no qsub")
    ran = machine.run([machine.which("qstat") or "qstat", "-B"], _ANSWER_S)
    if ran.code == 0:
        return Finding(name="pbs", status="ok", told="qsub is here and the server answers; outside any job")
    fix = "Run this on a login node of the cluster."
    return Finding(name="pbs", status="note", told=f"qsub is here, but the server does not answer: {ran.last}", fix=fix)


CHECKS = (
    Check("slurm", "asked the controller; inside a job, started a task with srun", slurm, 25.0),
    Check("pbs", "asked the server; inside a job, read its list of nodes", pbs, 15.0),
)
