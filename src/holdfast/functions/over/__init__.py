"""Aggregates over the last rows of a key: each row with those of itself and of a number of rows before it, by time.

Files in reading order: `declared` (as a user declares it, its checks, its tables), `operator`, `frames` (the aggregates
of a row and the rows before it), `kernels`.
"""
