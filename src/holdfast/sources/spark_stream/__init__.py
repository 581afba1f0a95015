"""A streaming DataFrame as a source.

Files in reading order: `stream_source` (settings, tasks), `stream_enumerator` (the driver's side), `stream_reader`
(Spark's query), `epoch_calls` (its calls of this program), `epochs` with `storing` and `epoch_head` (its batches,
stored once).
"""
