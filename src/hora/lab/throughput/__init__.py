"""`hora lab throughput`: images/s of a workload over workers, batch sizes, threads and transports.

- ``grid``      the points, and the trials of each in the order in which they run
- ``estimate``  a median and how sure it is, from the steps of several runs; ratios of two
- ``pool``      what several runs of the same thing come to
- ``room``      what the machine has room for, and what others did on it meanwhile
- ``measure``   the experiment: trials to rows
- ``show``      the table

Every point has beside it, in the same run, its limit: the same processes, each training alone. Warm-up steps are left
out of all figures but the study's.
"""
