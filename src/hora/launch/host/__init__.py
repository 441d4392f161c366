"""The host's side of a job: its agent, its workers as processes, their guardian, cores and output.

A job on the launcher's own host uses the same, without an agent. ``orders`` are what launcher and agents say to each
other.
"""
