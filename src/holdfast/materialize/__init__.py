"""Materializations: complete tables that are stored, so that their logs can be truncated.

Files in reading order: `keyed_state` (the durable side of a table), `logged_table`, `snapshotted_table`, `replica`
(stored by another subtask), `base`, `materializer`, `log_merge` (of stored pieces), `policy`, `schedule`, `sizes`.
"""
