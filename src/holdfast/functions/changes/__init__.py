"""Operators over streams of changes: a row that an update or a delete removes is taken back from the results.

Files in reading order: `weights` (rows that come and go), `kernels` and `sums` (counts, sums, means, variances, by
subtraction), `bag` (values, or whole rows, with their counts), `row_log` with `log_kernels` (rows as a log of each
key), `first_rows` (the first rows of keys in an order), `kept_values` (aggregates that need the values themselves),
`told` (what changed, as output), `aggregate`, `ranked` (the first rows of keys, as output). Joins and windows have
theirs in `joins.changes_join` and `windows.changes_window`.
"""
