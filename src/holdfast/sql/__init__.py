"""Queries in SQL, translated to the declarations that the methods of streams make; they add no operator. Pure.

sqlglot parses a query, which becomes the streams that a program would declare: `where`, `select`, `key_by` with
`aggregate`, `join`, `top`, `union`, `drop_duplicates`. Everything else is refused, with its place in the text.

Files in reading order: `scopes` (tables, trees and places), `grouping` (GROUP BY), `sources` (tables of FROM),
`relations` (finds each column's table), `joining` (JOIN), `subqueries` (EXISTS, IN), `ranking` (ROW_NUMBER, RANK),
`over` (aggregates over rows), `queries` (SELECT, UNION ALL, WITH), `on` (conditions of `Stream.join`).
"""
