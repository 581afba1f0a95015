"""Functions by row: a call for each row, with states of the row's key.

Files in reading order: `row_operator`, `keyed_states` (a state for each declared state), `cells` (values),
`entries_of_keys`, `entry_cells` and `entry_states` (lists and maps), `held_objects` (the memory of all of them until
the batch ends).
"""
