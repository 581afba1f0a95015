"""State as it lies in a job's storage, read from outside: its checkpoints, their content, its rows."""
