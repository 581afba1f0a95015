"""The number of TaskManagers that a job needs, computed from its batches' times. Pure: no I/O, no clock, no thread.

Files in reading order: `settings`, `work`, `rules`, `applying`.
"""
