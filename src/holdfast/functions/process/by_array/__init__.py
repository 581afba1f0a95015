"""Functions by array: a call for the rows of a batch, with states as arrays over its keys.

Files in reading order: `batch_operator`, `array_states`.
"""
