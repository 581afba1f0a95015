"""Sources: a source plans reads in the JobMaster, and tasks execute them.

Files in reading order: `base` (the interface), `wanted` (the rows that readers want), `sequence` (a source that
counts), `files/`, `dataframe` (a function that makes DataFrames), `pyspark_reader` (a data source of PySpark),
`spooled/` (rows that are sent only once), `postgres/`, `spark_stream/`, `kafka/`, `schema_fit` (rows against a declared
schema), `offsets` (offsets from users' code), `objects` (stored objects in use), `truncations`, `bad_reasons` (why rows
were bad).
"""
