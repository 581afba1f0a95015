"""Stand-in for a Spark application: a master, and settings by their names with `__` for a dot."""

from typing import Any


class NamedHost:
    """Answers about itself as a `SparkHost` does; all else goes to `other`."""

    def __init__(self, master: str, other: Any = None, /, **settings: str) -> None:
        self.master = master
        self._other = other
        self._settings = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}

    def setting(self, name: str) -> str | None:
        return self._settings.get(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)
