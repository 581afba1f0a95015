"""The part of a sink's publisher that deletes."""

from typing import Protocol

from holdfast.sinks.base import Gone


class Target(Protocol):
    """The staged files of a sink, in the job's storage and at the sink's own target."""

    def discard(self, name: str) -> None:
        """Delete the staged files of the group that is stored under this name."""

    def drop(self, committables: list[bytes]) -> None:
        """Delete the staged files of these committables."""

    def sweep(self, gone: Gone, named: list[bytes]) -> None:
        """Delete the staged files that are `gone` and that no committable in `named` needs."""
