"""State in a job's storage, read from outside the job: checkpoints, their contents, their rows; and initial state.

Files in reading order: `opened` (a checkpoint), `states`, `rows`, `live`, `read`, `difference`, and for initial state
`initial` with `initial_entries`.
"""
