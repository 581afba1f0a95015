"""Queries in SQL, as a front of the declarations that the methods of streams make: it adds no operator. Pure.

A query is parsed by sqlglot, and becomes the streams that a program would declare: `where`, `select`, `key_by` with
`aggregate`, `join`, `top`, `union`, `drop_duplicates`. What these cannot do is refused, with the place in the text.

Files in reading order: `scopes` (tables, trees and places), `grouping` (GROUP BY), `sources` (tables of FROM),
`relations` (which column is whose), `joining` (JOIN), `subqueries` (EXISTS, IN), `ranking` (ROW_NUMBER, RANK), `over`
and `last_rows` (aggregates over rows), `queries` (SELECT, UNION ALL, WITH), `on` (conditions of `Stream.join`).
"""
