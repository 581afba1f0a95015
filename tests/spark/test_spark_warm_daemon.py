"""Workers fork from a process that has loaded Holdfast, wherever `start()` can still say so."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.spark.session import DAEMON, DAEMON_MODULE, use_warm_daemon


class Conf:
    def __init__(self, **settings: str) -> None:
        self.settings = settings

    def get(self, name: str) -> str | None:
        return self.settings.get(name)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value


def session(master: str, python: str = sys.executable, **settings: str) -> tuple[Any, Conf]:
    in_jvm = Conf()
    java = SimpleNamespace(sc=lambda: SimpleNamespace(conf=lambda: in_jvm))
    context = SimpleNamespace(master=master, pythonExec=python, _conf=Conf(**settings), _jsc=java)
    return SimpleNamespace(sparkContext=context), in_jvm


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]"])
def test_on_local_sessions_start_sets_the_daemon_itself(master: str) -> None:
    spark, in_jvm = session(master)
    use_warm_daemon(spark)
    assert in_jvm.settings == {DAEMON_MODULE: DAEMON}


@pytest.mark.parametrize(("master", "python"), [("spark://host:7077", sys.executable), ("local[2]", "/bin/sh")])
def test_elsewhere_and_with_another_python_one_line_says_the_setting(
    master: str, python: str, caplog: pytest.LogCaptureFixture
) -> None:
    spark, in_jvm = session(master, python)
    with caplog.at_level(logging.INFO):
        use_warm_daemon(spark)
    assert in_jvm.settings == {}
    (line,) = caplog.messages
    assert f'.config("{DAEMON_MODULE}", "{DAEMON}")' in line


def test_a_daemon_that_the_program_names_stays(caplog: pytest.LogCaptureFixture) -> None:
    spark, in_jvm = session("local[2]", **{DAEMON_MODULE: "its.own"})
    with caplog.at_level(logging.INFO):
        use_warm_daemon(spark)
    assert in_jvm.settings == {} and not caplog.text
