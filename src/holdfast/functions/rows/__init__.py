"""Handling of rows that all operators share: columns, groups, and rows put aside because they are bad or late.

Files in reading order: `policies` (bad and late rows, as a user declares it), `columns` (between Arrow, NumPy and
tables), `grouping` with `kernels` (rows of the same key), `ordering` (rows in order by columns), `greatest` (the
greatest rows of groups), `pieces` (a part of a batch at a time), `late` and `bad_rows` (rows that are put aside),
`calls` and `times` (the way into functions of users), `expressions` (of PyArrow, over rows).
"""
