"""`hora doctor`: what works on this machine, tried for real, with the fix for what does not.

A check is a small function that is given a ``Machine`` to look at and returns findings: what was tried, how it went in
a sentence with values, and what to change. Nothing a check meets can end the doctor: each has a deadline, and whatever
loads foreign code (a framework, MPI, the C core) does so in a process of its own.

- ``check``         findings, checks, and what they add up to
- ``machine``       how checks look at the machine: files, commands, disks, interfaces; tests give them another one
- ``conduct``       runs checks: those that time something alone, the others at once
- ``show``          the report, on a terminal and in a log
- ``rooms``         all checks, room by room; each room is one of the files below
- ``installation``  Python, Hora, the C core, the allocator, file systems, start-up
- ``frameworks``    PyTorch and the others, imported in processes of their own
- ``transports``    a job for real; every transport at a few sizes; ``probe`` is what its workers run
- ``processor``     cores, threads, topology, clock
- ``memory``        memory and its limits, /dev/shm
- ``cgroup``        limits that a container or a batch system has set, version 1 and 2
- ``limits``        ulimits, and what N workers need
- ``kernel``        system calls that Hora uses; ``syscalls`` tries them
- ``network``       interfaces, addresses, names
- ``gpus``          NVIDIA's driver, CUDA, NCCL
- ``mpi``           mpirun and mpi4py
- ``schedulers``    Slurm and PBS
- ``hosts``         ssh, and every host of ``--hosts``; ``visitor`` is what runs there
- ``leftovers``     processes and files that earlier jobs left
- ``describe``      `hora env`: everything for a bug report
"""
