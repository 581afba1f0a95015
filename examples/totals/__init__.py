"""Totals by customer from a topic of orders, into a topic and a Delta table. Run it with `make demo-kafka`."""
