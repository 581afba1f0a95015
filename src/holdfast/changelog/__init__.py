"""The changelog: the log of a table.

Files in reading order: `writer`, `ranges` (its entries), `cut_pieces` (the wait of a cut for them), `waiting`
(changes that are not collected yet), `merging` (stored ranges that become one).
"""
