"""Functions of users on keyed streams, by row or by array.

Files in reading order: `declared` (base classes, checks, settings), `shared/` (declared states, and their rows),
`of_subtask/` (lists, broadcast states, the part that both kinds share), `by_row/`, `by_array/`, `known_rows`
(truncations as deletes).
"""
