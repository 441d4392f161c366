"""Which hosts a job has and which worker runs where. Starts nothing."""
