import os
import signal
import subprocess
import sys
import threading

import pytest

from holdfast import failpoints
from holdfast.errors import HoldfastError, SettingsError, StorageError


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


def run_armed(value: str, code: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: value}
    program = f"from holdfast.failpoints import hit\n{code}"
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)


def test_nothing_happens_where_nothing_is_armed():
    done = run_armed("", "hit('anywhere'); print('went on')")
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_an_armed_failpoint_raises_the_named_error():
    failpoints.arm("here", "raise:StorageError")
    with pytest.raises(StorageError, match="failpoint here"):
        failpoints.hit("here")
    failpoints.hit("elsewhere")


def test_a_count_acts_at_that_hit_only():
    failpoints.arm("here", "raise@2")
    failpoints.hit("here")
    with pytest.raises(HoldfastError):
        failpoints.hit("here")
    failpoints.hit("here")


def test_a_pause_holds_the_thread_until_the_file_is_removed(tmp_path):
    held = tmp_path / "held"
    failpoints.arm("here", f"pause:{held}")
    thread = threading.Thread(target=failpoints.hit, args=("here",))
    thread.start()
    while not held.exists():
        pass
    assert thread.is_alive()
    held.unlink()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("action", ["explode", "pause", "kill@x", ""])
def test_an_unknown_action_is_refused(action):
    with pytest.raises(SettingsError, match="allowed"):
        failpoints.arm("here", action)


@pytest.mark.kill
def test_the_environment_arms_a_new_process_which_kills_itself_once_with_a_marker(tmp_path):
    value = f"other=raise,here=kill:{tmp_path / 'marker'}@2"
    code = "hit('here')\nprint('one', flush=True)\nhit('here')\nprint('two')"
    first, second = run_armed(value, code), run_armed(value, code)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, "one\n")
    assert (second.returncode, second.stdout) == (0, "one\ntwo\n")
