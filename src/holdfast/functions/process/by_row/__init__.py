"""Functions by row: a call for each row, with states of the row's key.

Files in reading order: `row_operator`, `keyed_states` (a state for each declared state), `cells` (values),
`entry_cells` (lists and maps), `held_objects` (their memory until the batch ends).
"""
