"""Altered objects of every format, read in a process of their own: refused by name, in bounded time and memory."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("formats_fuzzing_script.py")
FOUND = [681, 2567]
"""Seeds that found something: a number that no name has room for, a column's name that is no text."""
HANGS_S = 60.0


def fuzz(seed: int, seconds: float) -> int:
    """Try seeds from `seed` on; return how many. A crash, a hang and a wrong error name the seed."""
    print(f"python {PROGRAM.name} {seed} {seconds}")
    command = [sys.executable, str(PROGRAM), str(seed), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + HANGS_S, check=False)
    assert not done.returncode, f"ended with {done.returncode}, the last seed is in:\n{done.stderr[-3000:]}"
    return int(done.stdout)


@pytest.mark.parametrize("seed", FOUND)
def test_what_altered_objects_found_stays_found(seed: int) -> None:
    assert fuzz(seed, 0) == 1


def test_altered_objects_are_refused_by_name() -> None:
    assert fuzz(random.SystemRandom().randrange(10**9), 2)


@pytest.mark.long
def test_altered_objects_are_refused_by_name_for_ten_minutes() -> None:
    assert fuzz(random.SystemRandom().randrange(10**9), 600) > 100_000
