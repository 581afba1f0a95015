"""An error as it travels between processes: the name of its class, its message and its causes."""

import builtins

import msgspec

from holdfast import errors


class Failure(msgspec.Struct, frozen=True):
    """An error of a class in `holdfast.errors` or elsewhere.

    `split`: the split that was being read; empty if that is not known.
    """

    kind: str
    message: str
    split: str = ""
    cause: "Failure | None" = None

    def error(self, other: type[Exception] = RuntimeError, of_python: tuple[type[Exception], ...] = ()) -> Exception:
        """Recreate the error and its causes: with its own class if that is a class of Holdfast or one in `of_python`,
        otherwise as `other`, with the name of its class in the message."""
        kind = getattr(errors, self.kind, None) or getattr(builtins, self.kind, None)
        made: Exception
        if isinstance(kind, type) and (issubclass(kind, errors.HoldfastError) or kind in of_python):
            made = kind(self.message)
        else:
            made = other(f"{self.kind}: {self.message}")
        if self.cause is not None:
            made.__cause__ = self.cause.error(other, of_python)
        return made


def failure_of(error: BaseException, where: str = "", split: str = "", causes_max: int = 0) -> Failure:
    """Describe an error. `where`, the place of the work, is added to errors that are not Holdfast's own.

    `split`: the split that was being read, if that is known. `causes_max`: bound on the chained causes.
    """
    foreign = where and not isinstance(error, errors.HoldfastError)
    kind = errors.class_abroad(error) or type(error).__name__
    cause = error.__cause__ if causes_max else None
    caused = None if cause is None else failure_of(cause, causes_max=causes_max - 1)
    return Failure(kind, f"{error} ({where})" if foreign else str(error), split, caused)
