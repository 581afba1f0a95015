"""A Delta table as a sink, appended to or merged into.

Files in reading order: `delta_sink`, `commits` (transactions on the table) with `held_table`, `merging` (upserts),
`storing` and `table_schema` (types that Delta holds), `table_files`.
"""
