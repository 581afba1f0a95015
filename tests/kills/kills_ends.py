"""How the programs that tests kill end: by another driver's takeover, or with the test that started them."""

import os
import signal
import threading

FENCED = 4
"""Exit code of a driver that another one has fenced."""


def end_with_parent() -> None:
    """The test holds the other end of stdin: where it is no more, nobody waits for this driver."""

    def watch() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()
