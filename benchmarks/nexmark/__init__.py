"""Nexmark: persons, auctions and bids of an auction site, and the queries by which streaming engines are compared.

`events` makes the input, `queries` has the queries as users write them, `expected` the same in SQL for a database.
`python -m benchmarks.nexmark` measures them (`measure`), also against Flink and Spark (`flink`, `spark`).
"""
