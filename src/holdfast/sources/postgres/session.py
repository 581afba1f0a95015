"""Settings of every session, like those of `pg_dump`. Whatever the role, database or environment set, a statement reads
all rows, without a time limit, and PostgreSQL writes each value in the same form.

They are set after the connection is made, since libpq's environment variables (PGDATESTYLE, PGTZ) overrule options of
the connection. A session keeps them when the server's own settings change.
"""

from typing import Any

FORMS = {
    "datestyle": "ISO, YMD",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "search_path": "",
}
"""The form of values and statements. Without a search path, row filters name the schemas of all that they use."""
WHOLE = {"row_security": "off", "synchronize_seqscans": "off"}
"""The server refuses to read a part of a table's rows if `row_security` is off."""
UNBOUNDED = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
TRANSACTIONS = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "synchronous_commit": "local",
}
"""Marks are committed here, and wait for no standby."""
SETTINGS = FORMS | WHOLE | UNBOUNDED | TRANSACTIONS
_SET = f"""
SELECT pg_catalog.set_config(asked.name, asked.value, false)
FROM (VALUES {", ".join(["(%s, %s)"] * len(SETTINGS))}) AS asked(name, value)
WHERE pg_catalog.current_setting(asked.name, true) IS NOT NULL"""
"""Sets the settings that this version of the server knows."""


def fix_settings(connection: Any) -> None:
    """Set the settings of a session."""
    with connection.cursor() as cursor:
        cursor.execute(_SET, [text for setting in SETTINGS.items() for text in setting])
        cursor.fetchall()
