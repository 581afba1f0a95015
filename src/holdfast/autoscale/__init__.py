"""The number of TaskManagers that a job needs, from what its batches took. Pure: no I/O, no clock, no thread.

Files in reading order: `settings`, `rules`, `applying`.
"""
