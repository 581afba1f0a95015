"""Expressions in Spark's SQL over Arrow batches: the same answers as Spark, or refused by name. Pure.

A text is parsed by sqlglot, bound to a schema once, which finds columns, functions and types, and run for each batch by
PyArrow's compute functions and NumPy. Errors of values are `pa.ArrowInvalid`, so that the row becomes a bad record.

Files in reading order: `declared` (an expression as declared), `bound` (ready to run), `parse`, `nodes` (terms, which
run), `types`, `binding`, `literals`, `operators`, `table` (of functions); the functions, `arithmetic`, `comparing`,
`choosing`, `mathematics`, `texts`, `patterns`, `times`, `units`, `formats`, `nested`, `sets`, `building`, `lambdas`,
`json_texts`, `digests`; their parts, `conversions` (casts), `reading_texts`, `writing_texts`, `zones`, `lists`,
`mapping`, `hashing`; `columns` (PySpark's), `failing` (rows for which an expression fails), `conditions` (joined, and
over other columns), `pruning` with `group_bounds` (groups of rows without one for which a condition is true).
"""
