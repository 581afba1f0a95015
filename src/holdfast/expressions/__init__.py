"""Expressions in Spark's SQL over Arrow batches. They give the same results as Spark, or are refused by name. Pure.

sqlglot parses a text. The tree is bound once to a schema, which finds columns, functions and types. PyArrow's compute
functions and NumPy then evaluate it for each batch. If a value causes an error, `pa.ArrowInvalid` is raised, and the
row becomes a bad record.

Files in reading order: `declared` (an expression as declared), `bound` (ready to run), `parse`, `nodes` (terms, which
run), `types`, `binding`, `literals`, `operators`, `table` (of functions); the functions: `arithmetic`, `comparing`,
`choosing`, `mathematics`, `texts`, `patterns`, `times`, `units`, `formats`, `nested`, `sets`, `building`, `lambdas`,
`json_texts`, `digests`; files that these use: `conversions` (casts), `reading_texts`, `writing_texts`, `zones`,
`lists`, `mapping`, `text_kernels`, `hashing`; `columns` (PySpark's), `failing` (finds the rows for which an expression
fails), `conditions` (joins conditions, and rewrites them for other columns), `pruning` with `group_bounds` (finds
groups of rows in which a condition is true for no row).
"""
