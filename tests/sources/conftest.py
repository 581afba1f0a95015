"""The PostgreSQL server of the tests: started when the first test asks for it, ended at the end."""

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
