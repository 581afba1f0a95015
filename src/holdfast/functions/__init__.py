"""Keyed operators: everything that a job does with rows by their key. Spark-free and I/O-free.

Files in reading order: `operator` (the interface of a keyed operator, and its inputs), `rows/` (what all operators
share), `timing/` (timers, expiry, keys in order of time), `aggregates/`,
`changes/` (over streams of changes), `process/` (functions of users), `windows/`, `over/` (aggregates over the last
rows of a key),
`ranking/`, `duplicates/`, `joins/`, `undo_log` (undo of a call that failed), `soft_failures` (a limit to refused
checkpoints).
"""
