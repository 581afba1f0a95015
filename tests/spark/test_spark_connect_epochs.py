"""Calls of a Spark Connect server for epochs, over real connections and without a server."""

import socket
import threading

import pytest

from holdfast.spark.connect_epochs import CallsFromServer
from holdfast.spark.epoch_forwarding import connected
from waiting import until


class Streaming:
    """A streaming DataFrame that keeps the function of its query."""

    def __init__(self):
        self.writeStream = self

    def foreachBatch(self, function):
        self.function = function
        return self


def test_a_stranger_is_sent_away_and_a_call_is_answered_beside_it():
    calls, stored = CallsFromServer(lambda rows: rows, "127.0.0.1"), []
    streaming = calls.writing(Streaming(), lambda rows, batch_id: stored.append(batch_id), None)
    try:
        with socket.create_connection(streaming.function._program.address, 5) as stranger:
            stranger.sendall(b"7\n")
            streaming.function(None, 7)
            assert stored == [7]
            stranger.settimeout(30)
            assert stranger.recv(100)[:1] != b"{", "an answer"
    finally:
        calls.close()


def test_a_call_that_waits_ends_with_the_program_and_a_later_one_names_it():
    calls, begun, ended = CallsFromServer(lambda rows: rows, "127.0.0.1"), threading.Event(), threading.Event()

    def store(rows, batch_id):
        begun.set()
        ended.wait(30)

    streaming = calls.writing(Streaming(), store, None)
    raised = []

    def call():
        try:
            streaming.function(None, 0)
        except Exception as error:
            raised.append(error)

    threading.Thread(target=call, daemon=True).start()
    assert begun.wait(30)
    calls.close()
    until(lambda: raised)
    ended.set()
    with pytest.raises(RuntimeError, match=r"does not reach the program that runs the job, at 127.0.0.1 port \d+"):
        connected(streaming.function._program)
