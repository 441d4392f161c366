"""`hora doctor`: what works on this machine, tried for real, with the fix for what does not.

A check is a small function that is given a ``Machine`` to look at and returns findings: what was tried, how it went in
a sentence with values, and what to change. Nothing a check meets can end the doctor: each has a deadline, and whatever
loads foreign code (a framework, MPI, the C core) does so in a process of its own.

- ``check``       findings, checks, and what they add up to
- ``machine``     how checks look at the machine: files, commands, disks, interfaces, control groups
- ``examine``     chooses checks, runs them (those that time something alone, the others at once), shows the report
- ``software``    Python, Hora, the C core, the allocator, file systems, start-up; the frameworks
- ``hardware``    cores, threads, topology, clock; memory and /dev/shm; GPUs
- ``system``      ulimits and what N workers need; system calls; the network; what earlier jobs left
- ``transports``  a job for real; every transport at a few sizes; mpirun and mpi4py
- ``hosts``       ssh, and every host of ``--hosts`` (``probe`` is what runs there); Slurm and PBS
- ``probe``       what the doctor runs in processes of its own
- ``describe``    `hora env`: everything for a bug report
"""
