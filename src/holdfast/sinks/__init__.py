"""Sinks: each stages rows in tasks, and publishes them in the JobMaster after a checkpoint.

Files in reading order: `base` (the interface), `staging` (rows as Arrow in the job's storage), `gathered` (committables
between checkpoints), `parquet` with `partitions` and `partition_time`, `delta/`, `kafka/`, `callback`, `memory`,
`noop`, `dead_letters` (bad rows), `targets` (no two sinks share a folder).
"""
