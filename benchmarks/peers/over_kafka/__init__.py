"""A running count per key from a Kafka topic into a Kafka topic, in each engine: a program each, and what runs them."""
