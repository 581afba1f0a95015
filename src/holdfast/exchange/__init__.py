"""The exchange: units of work, from reads to rows divided by key and sent to TaskManagers.

Files in reading order: `task` (a unit of work), `delivery` (its rows, to all targets), `hot_keys`, `step` and
`stepping` (the steps of a leg), `waiting_rows` (for sinks whose turn has not come), `combining` (fewer rows),
`changes` (of broadcast states), `event_times`, `partition` with `kernels` (division by key), `unit_writer` (an
attempt at a unit, to all TaskManagers), `link`, `parcels`, `links` and `connections` (over Flight), `local` (without
network), `dropping` (rows for lost TaskManagers), `resident` with `resident_server` (a sender that stays), `main` (as
a process), `warming`.
"""
