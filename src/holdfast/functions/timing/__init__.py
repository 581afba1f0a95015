"""Time: timers, the expiry of values, and keys in order of time.

Files in reading order: `time_index` with `packed_entries` (keys of a table in order of time), `key_order` (the entries
of single, very long keys), `timers` (of functions by row), `array_timers` (of functions by array), `expiry`.
"""
