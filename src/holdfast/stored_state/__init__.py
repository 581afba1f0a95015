"""State as it lies in a job's storage, read from outside: its checkpoints, their content, its rows.

Files in reading order: `opened` (a checkpoint), `states`, `rows`, `live`, `read`, `difference`, `initial` with
`initial_entries` (state in).
"""
