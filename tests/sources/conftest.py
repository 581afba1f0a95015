"""The PostgreSQL server of the tests, started when the first test asks for it; both readers of Kafka."""

import re

import pytest
from sources_postgres_server import Database


@pytest.fixture(scope="session")
def postgres():
    from examples.revenue.postgres import LocalPostgres

    server = LocalPostgres().start()
    yield server
    server.stop()


@pytest.fixture
def database(postgres, request):
    made = Database(postgres, re.sub(r"\W", "_", request.node.name.lower())[-30:])
    yield made
    made.drop()


@pytest.fixture(params=["fast", "plain"])
def each_kafka_reader(request, monkeypatch):
    """Both readers of a process: the fast one, and the client's own."""
    from holdfast.sources.kafka import readers

    if request.param == "plain":
        monkeypatch.setattr(readers, "library", lambda: None)
    monkeypatch.setattr(readers, "_idle", [])
    yield
    for _, reader in readers._idle:
        reader.close()
