"""Bounds on PySpark's attempts to reach a Spark Connect server that does not answer: by default it tries for ten
minutes, also at the end of the program, when it clears the session of every client."""

import atexit
from typing import Any
from weakref import WeakSet, ref

RETRIES_MAX, BACK_OFF_MS_MAX = 8, 5_000
"""Bounds on the attempts at a call while the server does not answer, some 25 s in all, and some 50 s for commands such
as the list of streaming queries. Then the session counts as ended."""
EXIT_RETRIES_MAX, EXIT_BACK_OFF_MS_MAX = 3, 500
"""The same at the end of the program, a second or two in all. A higher value delays that end while a server is gone."""

_clients: "WeakSet[Any]" = WeakSet()
"""The clients whose attempts are bounded at the end of the program."""


def notice_soon(session: Any) -> None:
    """Have calls of a session of Holdfast's own fail within a minute if the server is gone, and sooner at the end."""
    _bound(session.client, RETRIES_MAX, BACK_OFF_MS_MAX)
    end_soon(session)


def is_away(error: BaseException) -> bool:
    """Return True if a call failed because the server does not answer, and not by an answer of the server."""
    code = getattr(error, "getGrpcStatusCode", None)
    return code is not None and code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def end_soon(session: Any) -> None:
    """Have the program end soon although the server of a session is gone. Until then its calls stay as they are.

    The functions of `atexit` that are registered last are called first, so this must follow the making of the session.
    """
    client = session.client
    if client not in _clients:
        _clients.add(client)
        atexit.register(_bound_at_exit, ref(client))


def _bound_at_exit(found: Any) -> None:
    client = found()
    if client is not None:
        _bound(client, EXIT_RETRIES_MAX, EXIT_BACK_OFF_MS_MAX)


def _bound(client: Any, retries_max: int, back_off_ms_max: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # needs the extra `connect`

    client.set_retry_policies([DefaultPolicy(retries_max, max_backoff=back_off_ms_max)])
