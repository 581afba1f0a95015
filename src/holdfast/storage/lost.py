"""Messages about objects of a job's storage that are gone."""

from holdfast.errors import ObjectNotFound

ADVICE = (
    "Holdfast deletes an object only after the last checkpoint that names it, so this one was deleted, or not copied, "
    "from outside. Restore it from a backup or the bucket's older versions (`holdfast verify` lists all that is "
    "missing); or start from a savepoint on a new storage: Job(storage=…) with job.start(start_from=…)"
)


def lost(what: str, error: ObjectNotFound, instead: str = "") -> ObjectNotFound:
    """Describe the loss of an object: `what` it contained, and what to do. `instead` names another remedy."""
    return ObjectNotFound(f"{what}: {error}. {ADVICE}{'; or ' if instead else ''}{instead}")
