"""Elastic jobs from the launcher's side: finding hosts, starting and ending workers, deciding who is in.

``supervise`` runs a job from its first process to its last, ``hosts`` finds out where it may run; ``ways`` start
workers on this host and on others. Who is in is decided by ``hora.elastic.membership``.
"""
