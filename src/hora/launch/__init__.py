"""Starting the workers of a job, watching them and ending them.

The launcher's side is here: ``planning`` decides which worker runs where, ``starters`` bring an agent to every host,
``ways`` start workers (on this host, through agents, by mpirun), ``supervise`` watches them to their end, ``failure``
says why a job failed, and ``function`` is ``hora.run``. ``elastic`` is the same for elastic jobs, ``submit`` writes job
scripts. The host's side is ``host``: it knows nothing of the rest.
"""
