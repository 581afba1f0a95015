"""Rows as JSON texts, and JSON texts as rows: for files, Kafka's messages and dead letters alike.

`values.py` reads the values of a column, and has the table of which JSON value fits which type. `reader.py` reads
records, each of which is an object whose fields are columns; `quick.py` does so for many plain records at once.
`writer.py` writes rows so that the reader gives them back.

Files in reading order: `reader`, `quick`, `nesting`, `values`, `leaves`, `decimals`, `far_times`, `writer`.
"""
