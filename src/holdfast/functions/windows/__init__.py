"""Windows of event time, and sessions: aggregates and functions over the rows of each window.

Files in reading order: `declared` (windows as keys), `windowed` (declarations behind a window), `declaring` (from a
user's arguments to an operator), `sending` (rows on their way), `panes` (rules of panes) with `kernels`, `aggregate`
and `window_operator` (aggregates by window), `changes_window` (the same over streams of changes), `merging` (states of
panes and sessions), `session`, `session_operator` and `session_chains` with `session_kernels` (aggregates by session),
`row_windows`, `rows_operator` and `session_rows_operator` (rows kept until a window closes), `live_rows` and
`changes_session` (the same over streams of changes), `process` (functions of a whole window).
"""
