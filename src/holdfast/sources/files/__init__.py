"""Files as a source: Parquet, CSV, JSON lines or Arrow, here or in an object store.

Files in reading order: `file_source` (settings, tasks), `file_enumerator` (the driver's side) with `backlog` and
`discovery_chunks` (files that were seen), `dividing` (a file into reads), `trees` (access to files), `local_tree`,
`store_tree`, `open_tree`, `patterns` and `hive` (names of files and folders), `file_format` (the interface of a
format), `formats`, `row_condition` (`where=`), `columnar` with `parquet_format`, `row_groups` and `group_decoders`,
`text_format` with `lines` and `line_streams`, `csv_format` with `csv_records`, `json_format`.
"""
