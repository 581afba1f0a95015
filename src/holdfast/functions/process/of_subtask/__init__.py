"""The parts of a running function that belong to a subtask and not to a key.

Files in reading order: `function_operator` (the part that functions by row and by array share), `list_states` with
`subtask_list` (lists of a subtask), `broadcast` with `subtask_broadcast` (a stream that every subtask has).
"""
