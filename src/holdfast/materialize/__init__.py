"""Materializations: tables stored as a whole, so that their logs can be cut off.

Files in reading order: `keyed_state` (the durable side of a table), `logged_table`, `snapshotted_table`, `replica`
(stored by another subtask), `base`, `materializer`, `policy`, `schedule`, `sizes`.
"""
