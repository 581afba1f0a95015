"""The greatest rows: of a window, of a key, and the last row of a key.

Files in reading order: `declaring` (as a user declares it), `greatest` (the checks of the column),
`window_top`, `keyed_top`, `last`.
"""
