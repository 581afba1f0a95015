"""Operators over streams of changes: what an update or a delete undoes is taken back.

Files in reading order: `weights` (rows that come and go), `kernels` and `sums` (counts, sums, means, variances, by
subtraction), `bag` and `kept_values` (aggregates that need the values themselves), `told` (what changed, as output),
`aggregate`.
"""
