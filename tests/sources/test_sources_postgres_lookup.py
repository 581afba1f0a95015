"""The example that looks rows up in PostgreSQL, with a pool of connections, on a real server."""

from examples.lookup import looked_up


def test_orders_get_the_names_of_their_customers(postgres):
    postgres.execute("CREATE TABLE customers (id bigint PRIMARY KEY, name text)")
    try:
        postgres.execute("INSERT INTO customers VALUES (7, 'Ada'), (8, 'Bo')")
        assert looked_up(postgres.dsn) == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bo"}]
    finally:
        postgres.execute("DROP TABLE customers")
