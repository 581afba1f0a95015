"""Quick checks of a store before anything relies on it: that it can be reached, and that it obeys conditions."""

import re
from collections.abc import Mapping

from holdfast.errors import JobRefused, ObjectExists, StorageError
from holdfast.storage.names import JOURNAL
from holdfast.storage.store import ObjectStore, open_store

ATTEMPTS_MAX = 2
QUICK = {"timeout": "5s", "connect_timeout": "2s"}
"""Time-outs of an attempt; the user's own time-outs take precedence."""

CONDITION_ATTEMPTS_MAX = 4
"""Attempts at the put that the store must refuse. Each further attempt tolerates one more failed request."""

NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|metadata\.google\.internal|169\.254\.170\.2")
"""Addresses at which cloud machines ask for their identity. A request there means that no credentials were given."""

LOCAL = ("file:", "memory:")


def check_reachable(url: str, storage_options: Mapping[str, str] | None = None, whose: str = "storage") -> None:
    """Ask the store of a job for its journal. The call fails after about ten seconds.

    Raises
    ------
    StorageError
        The store did not answer, or refused: a wrong endpoint, refused credentials, a missing bucket.
    SettingsError
        As `open_store`.
    """
    if url.startswith(LOCAL):
        return
    store = open_store(url, {**QUICK, **(storage_options or {})}, whose=whose)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            store.list(JOURNAL, after=f"{JOURNAL}~")  # begins after all names: an empty page
            return
        except StorageError as error:
            if NO_CREDENTIALS.search(str(error)):
                raise StorageError(
                    f"{url}: no credentials were found: give them in storage_options (aws_access_key_id and "
                    "aws_secret_access_key for S3), or in the provider's environment variables (AWS_ACCESS_KEY_ID, …). "
                    f"Without them Holdfast asked for the machine's own identity, without success: {error}"
                ) from None
            if attempt == ATTEMPTS_MAX:
                raise StorageError(
                    f"{error}. The storage cannot be reached: check its URL, and endpoint, region and credentials in "
                    "storage_options; nothing was started or changed"
                ) from None


def check_put_if_absent(store: ObjectStore, name: str, data: bytes) -> None:
    """Repeat a put-if-absent of an existing object with the same data. The store must refuse it.

    Raises
    ------
    JobRefused
        The store accepted the put: it ignores the condition (`If-None-Match: *`), so two JobMasters could write the
        same record.
    StorageError
        The store did not answer.
    """
    for attempt in range(1, CONDITION_ATTEMPTS_MAX + 1):
        try:
            store.create(name, data)
        except ObjectExists:
            return
        except StorageError:
            if attempt == CONDITION_ATTEMPTS_MAX:
                raise
        else:
            break
    raise JobRefused(
        f"{store.url}: the store ignores the condition of put-if-absent (If-None-Match: *): it wrote {name!r}, which "
        "was there already. It cannot keep two drivers apart: both would run, and rows would be lost or come twice. "
        "Use a store, or a version of it, that supports conditional writes"
    )
