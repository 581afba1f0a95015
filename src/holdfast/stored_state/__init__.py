"""State as it lies in a job's storage, read from outside: which checkpoints there are, what they hold, its rows."""
