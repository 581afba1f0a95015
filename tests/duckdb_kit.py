"""DuckDB, with which results are compared. A database takes 30 ms of processor time to make, a cursor next to none."""

from functools import cache

import duckdb


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def connection() -> duckdb.DuckDBPyConnection:
    """Return a connection with tables and settings of its own, as a context that closes it."""
    return _database().cursor()
