"""Aggregates by key: counts, sums, extremes, sets, sketches.

Files in reading order: `declared`, `spec`, `operator` (a subtask), `table`, `accumulators` with `kernels`,
`more_accumulators` with `more_kernels`, `checked_sums` (sums that can leave their type), `distinct` with `pair_set`
and `large_sets` (sets), `sketches` with `sketch_kernels` and `precision` (distinct values, roughly), `combining`
(fewer rows to send).
"""
