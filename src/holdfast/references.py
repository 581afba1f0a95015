"""References to stored bytes: the name of an object, or a part of an object with its range and its meaning.

    manifests/…/tm-…                                        a complete object
    gathered/…@<offset>+<length>=tm-<task manager>          a TaskManager's manifest in a gathered object
    gathered/…@<offset>+<length>=sink-<sink>                a sink's committables in a gathered object
    dstl/…@<offset>+<length>=<checkpoint>/tm-<task manager> a TaskManager's manifest behind its logs

This module imports no other, so that pure rules can find the object that a reference needs. `storage.names` builds and
parses references.
"""

RANGE, LENGTH, MEANING = "@", "+", "="
"""Characters before a part's offset, its length, and its meaning. Names of objects never contain the first two."""


def object_of(reference: str) -> str:
    """Return the name of the object that holds the bytes."""
    return reference.partition(RANGE)[0]
