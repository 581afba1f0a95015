"""The formats of stored bytes, and their meaning. `docs/reference/format/` draws them.

Files in reading order: `blocks`, `log_objects`, `snapshots`, `base_files`, `handles`, `manifests`,
`store_use`, `history`, `leader`.
"""
