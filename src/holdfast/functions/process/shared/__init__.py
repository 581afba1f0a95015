"""The states of functions, and the output, in the forms that functions by row and by array share.

Files in reading order: `states` (as a user declares them), `values` (the kept form of Python values), `entries` (lists
and maps as rows), `sweeping` (removal of expired values), `output`.
"""
