"""Bringing an agent to every host: by ssh, srun or Ray."""
