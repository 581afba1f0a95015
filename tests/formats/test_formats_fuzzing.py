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


def fuzz(seconds: float, *seeds: int) -> int:
    """Try seeds from each of these on; return how many. A crash, a hang and a wrong error name the seed."""
    command = [sys.executable, str(PROGRAM), str(seconds), *map(str, seeds)]
    print("python", PROGRAM.name, *command[2:])
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + HANGS_S, check=False)
    assert not done.returncode, f"ended with {done.returncode}, the last seed is in:\n{done.stderr[-3000:]}"
    return int(done.stdout)


def test_what_altered_objects_found_stays_found() -> None:
    assert fuzz(0, *FOUND) == len(FOUND)


def test_altered_objects_are_refused_by_name() -> None:
    assert fuzz(1, random.SystemRandom().randrange(10**9))


@pytest.mark.long
def test_altered_objects_are_refused_by_name_for_ten_minutes() -> None:
    assert fuzz(600, random.SystemRandom().randrange(10**9)) > 100_000
