"""A limit on an operator's refusals of checkpoints: beyond it, a soft failure becomes a hard failure."""

from holdfast.availability import SnapshotAvailability
from holdfast.clock import Clock, SystemClock
from holdfast.errors import SettingsError
from holdfast.quantities import Duration, duration_s


class SoftFailureLimit:
    """Turns soft failures into hard ones once they have lasted too long.

    The first limit that is reached counts; an answer other than a soft failure starts both anew.

    Parameters
    ----------
    timeout
        Soft failures for longer than this, without another answer in between, become hard. None: no limit.
    number
        More soft answers than this in a row become hard. Each batch has an answer. None: no limit.
    clock
        The clock that measures `timeout`.

    Examples
    --------
        def open(self, ctx):
            self.limit = hf.SoftFailureLimit(timeout="5min")

        def is_snapshot_available(self):
            if not self.transactions:
                return self.limit.apply(hf.SnapshotAvailability.AVAILABLE)
            return self.limit.apply(hf.SnapshotAvailability.SOFT_FAILURE.because("a transaction is open"))
    """

    def __init__(self, timeout: Duration | None = None, number: int | None = None, clock: Clock | None = None) -> None:
        if timeout is None and number is None:
            raise SettingsError("SoftFailureLimit() limits nothing: give timeout='5min', number=100, or both")
        self._timeout = timeout
        self._timeout_s = None if timeout is None else duration_s(timeout, "SoftFailureLimit(timeout)")
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise SettingsError(
                f"SoftFailureLimit(number)={number!r}: allowed is a whole number of at least 0, or None"
            )
        self._number = number
        self._clock = clock or SystemClock()
        self._since_s: float | None = None
        self._answers = 0

    def apply(self, answer: SnapshotAvailability) -> SnapshotAvailability:
        """Return the answer, or a hard failure in its place where soft ones have lasted too long."""
        if answer.kind != "soft_failure":
            self._since_s, self._answers = None, 0
            return answer
        now_s = self._clock.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        self._answers += 1
        lasted_s = now_s - self._since_s
        if self._timeout_s is not None and lasted_s > self._timeout_s:
            limit = f"for {lasted_s:.3g} s, longer than timeout={self._timeout!r}"
        elif self._number is not None and self._answers > self._number:
            limit = f"{self._answers} times in a row, more than number={self._number}"
        else:
            return answer
        return SnapshotAvailability.HARD_FAILURE.because(f"{answer.message} (refused {limit})")
