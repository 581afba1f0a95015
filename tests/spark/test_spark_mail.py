"""The mailbox in a session's settings, and the link to a JobMaster that answers there; with a session of the test."""

import threading
from weakref import ref

import cloudpickle
import msgspec
import pytest
from grpc import StatusCode

import holdfast as hf
from holdfast.formats.leader import LeaderState, StoredBeat
from holdfast.query_calls import CallAnswer, LastWord, QueryCall, StartedQuery, encoded, failure_of
from holdfast.spark import attaching, cluster_link, cluster_start, connect_retries, session_mail
from holdfast.spark.attaching import next_channel
from holdfast.spark.cluster_link import ClusterLink, DriverChannel, StartFailed
from holdfast.spark.connect_retries import end_soon
from holdfast.spark.session_mail import ANSWER, ASK, ENDED, PREFIX, STARTED, MailServer, SessionMail
from waiting import until

WINDOW_S = 600.0


class Settings:
    """The settings of a session, as Spark Connect has them."""

    def __init__(self):
        self.held = {"spark.app.id": "app"}

    @property
    def getAll(self):
        return dict(self.held)

    def get(self, key, default):
        return self.held.get(key, default)

    def set(self, key, value):
        self.held[key] = value

    def unset(self, key):
        self.held.pop(key, None)


class Session:
    """A hosting session: its settings, its streaming queries, and the release of it."""

    def __init__(self):
        self.conf, self.streams, self.client = Settings(), self, self
        self.active, self.is_released, self.is_closed = ["the query that hosts"], False, False

    def release_session(self):
        self.is_released = True

    def close(self):
        self.is_closed = True

    def set_retry_policies(self, policies):
        self.policies = policies


class Away(Exception):
    """An error as PySpark raises it if the server does not answer."""

    def getGrpcStatusCode(self):
        return StatusCode.UNAVAILABLE


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(session_mail, "IDLE_S", 0.01)
    monkeypatch.setattr(session_mail, "AWAKE_S", 0.01)
    monkeypatch.setattr(session_mail, "POLL_S_MIN", 0.01)
    monkeypatch.setattr(session_mail, "POLL_S_MAX", 0.01)
    monkeypatch.setattr(cluster_link, "LOOK_S", 0.01)
    monkeypatch.setattr(cluster_link, "AGAIN_S", 0.01)
    monkeypatch.setattr(attaching, "POLL_S", 0.01)


def mail_in(session):
    return {name for name in session.conf.held if name.startswith(PREFIX)}


def test_each_request_gets_its_own_answer_and_nothing_stays_in_the_mailbox():
    session, gone = Session(), threading.Event()
    mail, server = SessionMail(session), MailServer(SessionMail(session), lambda request: request.upper())
    answers = {}
    asked = [
        threading.Thread(target=lambda word=word: answers.update({word: mail.ask("status", word, gone)}))
        for word in (b"one", b"two", b"three")
    ]
    for each in asked:
        each.start()
    for each in asked:
        each.join()
    assert answers == {b"one": b"ONE", b"two": b"TWO", b"three": b"THREE"}
    until(lambda: not mail_in(session))
    server.close(5)


def test_an_answer_that_nobody_takes_is_thrown_away(monkeypatch):
    monkeypatch.setattr(session_mail, "KEPT_S_MAX", 0.0)
    session = Session()
    server = MailServer(SessionMail(session), lambda request: b"an answer")
    SessionMail(session).put(f"{ASK}left", b"")
    until(lambda: f"{ANSWER}left" not in mail_in(session) and f"{ASK}left" not in mail_in(session))
    server.close(5)


def test_no_more_requests_run_at_a_time_than_the_bound(monkeypatch):
    monkeypatch.setattr(session_mail, "RUNNING_MAX", 2)
    session, running, proceed = Session(), [], threading.Event()

    def answer(request):
        running.append(request)
        proceed.wait(30)
        return b""

    mail = SessionMail(session)
    for number in range(5):
        mail.put(f"{ASK}{number}", b"")
    looks = []
    monkeypatch.setattr(Settings, "getAll", property(lambda self: looks.append(1) or dict(self.held)))
    server = MailServer(mail, answer)
    until(lambda: len(looks) > 5)
    assert len(running) == 2
    proceed.set()
    until(lambda: len(running) == 5)
    server.close(5)


def test_a_stop_is_carried_out_beside_calls_that_are_stuck(monkeypatch):
    monkeypatch.setattr(session_mail, "RUNNING_MAX", 2)
    session, proceed = Session(), threading.Event()
    mail = SessionMail(session)
    for number in range(3):
        mail.put(f"{ASK}savepoint.{number}", b"")
    server = MailServer(mail, lambda request: request or (proceed.wait(30) and b"") or b"")
    assert mail.ask("stop", b"stopped", threading.Event()) == b"stopped"
    proceed.set()
    server.close(5)


def test_a_call_that_ends_while_a_look_travels_is_carried_out_once(monkeypatch):
    session, calls, may_end = Session(), [], threading.Event()

    def answer(request):
        calls.append(request)
        may_end.wait(30)
        return b"an answer"

    looks = []

    def found(self):
        shown = dict(self.held)
        looks.append(1)
        if calls and f"{ASK}1" in shown:
            may_end.set()
            until(lambda: f"{ASK}1" not in self.held)
            until(lambda: not any(each.name == "holdfast-mail-call" for each in threading.enumerate()))
        return shown

    SessionMail(session).put(f"{ASK}1", b"")
    monkeypatch.setattr(Settings, "getAll", property(found))
    server = MailServer(SessionMail(session), answer)
    until(lambda: f"{ANSWER}1" in session.conf.held)
    seen = len(looks)
    until(lambda: len(looks) > seen + 3)
    assert len(calls) == 1
    server.close(5)


def test_a_call_whose_answer_cannot_be_written_is_carried_out_once_and_ends_by_name(monkeypatch):
    session, calls, writes = Session(), [], Settings.set

    def fails(self, key, value):
        if key.startswith(ANSWER):
            raise OSError("the server is away")
        writes(self, key, value)

    monkeypatch.setattr(Settings, "set", fails)
    server = MailServer(SessionMail(session), lambda request: calls.append(request) or b"")
    with pytest.raises(hf.HoldfastError, match="carried out rescale, and its answer is gone"):
        SessionMail(session).ask("rescale", b"", threading.Event())
    assert len(calls) == 1
    server.close(5)


def test_a_session_that_does_not_answer_for_a_while_is_asked_again(monkeypatch):
    session, fails = Session(), [True]

    def found(self):
        if fails[0]:
            raise OSError("the server is away")
        return dict(self.held)

    monkeypatch.setattr(Settings, "getAll", property(found))
    server = MailServer(SessionMail(session), lambda request: b"yes")
    SessionMail(session).put(f"{ASK}1", b"")
    fails[0] = False
    until(lambda: f"{ANSWER}1" in mail_in(session))
    server.close(5)


def started(epoch=3):
    """A channel to a JobMaster that has started its job."""
    session = Session()
    SessionMail(session).put(STARTED, msgspec.msgpack.encode(StartedQuery("id", "job", f"run-{epoch}", epoch)))
    return DriverChannel(session)


def answering(channel, value):
    def answer(request):
        return msgspec.msgpack.encode(CallAnswer(encoded(value(QueryCall(*cloudpickle.loads(request))))))

    return MailServer(SessionMail(channel.session), answer)


def refused(lost):
    raise hf.HoldfastError("nobody leads")


def test_a_successor_answers_calls_once_the_jobmaster_is_lost():
    first, second = started(3), started(5)
    server = answering(second, lambda call: call.name)
    lost = []
    link = ClusterLink(first, lambda channel: lost.append(channel) or second, 10, WINDOW_S)
    first.session.active = []
    assert msgspec.msgpack.decode(link.ask(QueryCall("restarts"))) == "restarts"
    assert lost == [first] and link.started.run_id == "run-5" and not link.trouble
    until(lambda: first.session.is_released)
    assert link.last_word is None and link.wait(0.01) is False
    link._end(LastWord())
    server.close(5)


def test_a_call_that_changes_something_is_not_repeated_at_a_successor():
    first, second, is_asked = started(3), started(5), threading.Event()
    link = ClusterLink(first, lambda _: second, 10, WINDOW_S)
    failed = []

    def ask():
        try:
            link.ask(QueryCall("trigger_checkpoint"))
        except hf.HoldfastError as error:
            failed.append(str(error))
        is_asked.set()

    threading.Thread(target=ask, daemon=True).start()
    until(lambda: any(name.startswith(ASK) for name in mail_in(first.session)))
    first.session.active = []
    assert is_asked.wait(30)
    assert "was lost while it carried out trigger_checkpoint" in failed[0]
    assert not any(name.startswith(ASK) for name in mail_in(second.session))
    link._end(LastWord())


def test_the_last_word_of_a_jobmaster_ends_the_link():
    channel = started()
    link = ClusterLink(channel, refused, 10, WINDOW_S)
    SessionMail(channel.session).put(ENDED, msgspec.msgpack.encode(LastWord(failure_of(hf.Fenced("by another")))))
    channel.session.active = []
    assert link.wait(30) and link.last_word.failure.kind == "Fenced"
    assert link.ask(QueryCall("status")) is None


def test_a_jobmaster_without_a_successor_ends_the_link_with_the_reason():
    channel = started()
    link = ClusterLink(channel, refused, 10, WINDOW_S)
    channel.session.active = []
    assert link.wait(30) and link.last_word.failure.message == "nobody leads"


def test_a_jobmaster_that_is_lost_too_often_is_not_started_again():
    def successor(_):
        channel = started(5)
        channel.session.active = []
        return channel

    first = successor(None)
    link = ClusterLink(first, successor, 3, WINDOW_S)
    assert link.wait(30) and link.last_word.failure.kind == "RestartsExhausted"
    assert "was lost 4 times within 600 s" in link.last_word.failure.message


def test_a_server_that_is_gone_ends_the_link_by_name():
    channel = started()
    link = ClusterLink(channel, refused, 10, WINDOW_S)
    del channel.session.streams
    assert link.wait(30) and link.last_word.failure.kind == "SessionStopped"


class Streams:
    """Fails while `down`."""

    down = True

    @property
    def active(self):
        if self.down:
            raise Away("connection refused")
        return ["the query that hosts"]


def test_a_server_that_does_not_answer_for_a_while_ends_nothing_and_is_named():
    channel = started()
    link = ClusterLink(channel, refused, 10, WINDOW_S)
    channel.session.streams = Streams()
    until(lambda: "does not answer" in link.trouble)
    channel.session.streams.down = False
    until(lambda: not link.trouble)
    assert link.last_word is None
    link._end(LastWord())


def test_a_server_that_does_not_answer_for_too_long_ends_the_link_by_name(monkeypatch):
    monkeypatch.setattr(cluster_link, "AWAY_S_MAX", 0.1)
    channel = started()
    channel.session.streams = Streams()
    link = ClusterLink(channel, refused, 10, WINDOW_S)
    assert link.wait(30) and link.last_word.failure.kind == "SessionStopped"
    assert "connection refused" in link.last_word.failure.message


def test_a_call_that_does_not_reach_the_server_says_so(monkeypatch):
    channel = started()

    def put(*_):
        raise Away("connection refused")

    monkeypatch.setattr(channel._mail, "put", put)
    link = ClusterLink(channel, refused, 10, WINDOW_S)
    with pytest.raises(hf.HoldfastError, match=r"does not answer.*Whether rescale was carried out is not known"):
        link.ask(QueryCall("rescale"))
    link._end(LastWord())


def test_the_end_of_a_program_asks_a_server_that_is_gone_only_a_few_times():
    session = Session()
    end_soon(session)
    assert not hasattr(session, "policies")
    connect_retries._bound_at_exit(ref(session))
    assert [each.max_retries for each in session.policies] == [connect_retries.EXIT_RETRIES_MAX]


def test_a_start_of_a_successor_that_fails_is_tried_again():
    first, second, tried = started(3), started(5), []

    def successor(lost):
        tried.append(lost)
        if len(tried) < 3:
            raise StartFailed from hf.JobRefused("no slots")
        return second

    link = ClusterLink(first, successor, 10, WINDOW_S)
    first.session.active = []
    until(lambda: link.started.run_id == "run-5")
    assert tried == [first] * 3 and link.last_word is None
    link._end(LastWord())


def test_starts_that_fail_end_the_link_with_the_last_cause():
    def successor(_):
        raise StartFailed from hf.JobRefused("no slots")

    for window_s, kind in [(WINDOW_S, "RestartsExhausted"), (0.0, "JobRefused")]:
        channel = started()
        link = ClusterLink(channel, successor, 2, window_s)
        channel.session.active = []
        assert link.wait(30) and link.last_word.failure.kind == kind


def test_a_query_whose_jobmaster_does_not_start_again_can_be_stopped():
    def successor(_):
        raise StartFailed from hf.JobRefused("no slots")

    channel = started()
    link = ClusterLink(channel, successor, 10**6, WINDOW_S)
    channel.session.active = []
    until(lambda: "is tried again: no slots" in link.trouble)
    assert link.ask(QueryCall("stop")) is None and link.last_word == LastWord()


def test_a_driver_in_waiting_that_leads_now_is_known_by_its_epoch():
    channel = started(0)
    link = ClusterLink(channel, refused, 10, WINDOW_S)
    SessionMail(channel.session).put(STARTED, msgspec.msgpack.encode(StartedQuery("id", "job", "run-7", 7)))
    until(lambda: link.started.run_id == "run-7")
    assert channel.started.epoch == 7
    link._end(LastWord())


class Stored:
    url = "memory://job"


def beats(monkeypatch, *found):
    """Have the storage show these epochs and states one after the other, and return the session of the leader."""
    session, looks = started(5).session, iter(found)
    last = []

    def newest_beat(_):
        last[:] = [next(looks, last[0] if last else None)]
        epoch, state = last[0]
        return epoch, state and StoredBeat("job", epoch, 1, state, "", 1, "session")

    monkeypatch.setattr(attaching, "newest_beat", newest_beat)
    monkeypatch.setattr(attaching, "same_session", lambda spark, session_id: session)
    return session


def test_a_takeover_is_awaited_until_its_first_heartbeat(monkeypatch):
    session = beats(monkeypatch, (3, LeaderState.LEADS), (5, None), (5, None), (5, LeaderState.LEADS))
    assert next_channel(Stored, started(3)).started.epoch == 5 and not session.is_closed


def test_errors_while_the_next_jobmaster_is_looked_for_are_tried_again(monkeypatch):
    session = beats(monkeypatch, (5, LeaderState.LEADS))
    failing = iter([hf.StorageError("away"), OSError("no route")])
    find = attaching.newest_beat

    def newest_beat(store):
        for error in failing:
            raise error
        return find(store)

    monkeypatch.setattr(attaching, "newest_beat", newest_beat)
    assert next_channel(Stored, started(3)).started.epoch == 5 and not session.is_closed


def test_a_handle_of_a_driver_in_waiting_does_not_become_one_of_the_leader(monkeypatch):
    beats(monkeypatch, (5, LeaderState.LEADS))
    monkeypatch.setattr(cluster_start, "newest_beat", lambda store: (5, None))
    monkeypatch.setattr(cluster_start, "open_store", lambda *_, **__: None)
    monkeypatch.setattr(cluster_start, "RetryingStore", lambda _: Stored)

    def fails(*_):
        raise hf.JobRefused("no slots")

    monkeypatch.setattr(cluster_start, "_hosted", fails)
    job = hf.Job(None, name="job", storage="memory://job")
    assert cluster_start._successor(job, b"", started(3)).started.epoch == 5
    with pytest.raises(StartFailed):
        cluster_start._successor(job, b"", started(0))


@pytest.mark.parametrize(
    ("state", "session_id", "said"),
    [
        (LeaderState.LEADS, "", "led by a program of its own"),
        (LeaderState.STOPPED, "session", r"has ended \(stopped\)"),
    ],
)
def test_an_answer_that_stays_as_it_is_ends_the_wait_for_the_next_jobmaster(monkeypatch, state, session_id, said):
    beats(monkeypatch)
    looks = []

    def newest_beat(_):
        looks.append(1)
        return 5, StoredBeat("job", 5, 1, state, "", 1, session_id)

    monkeypatch.setattr(attaching, "newest_beat", newest_beat)
    monkeypatch.setattr(attaching, "SUCCESSOR_S_MAX", 1.0)
    with pytest.raises(hf.HoldfastError, match=said):
        next_channel(Stored, started(3))
    assert len(looks) == 1


def test_a_jobmaster_that_does_not_start_is_awaited_once(monkeypatch):
    monkeypatch.setattr(attaching, "STARTING_S_MAX", 0.05)
    monkeypatch.setattr(attaching, "SUCCESSOR_S_MAX", 0.05)
    session = beats(monkeypatch, (5, LeaderState.LEADS))
    session.conf.held.clear()
    made = []
    monkeypatch.setattr(attaching, "same_session", lambda *_: made.append(1) or session)
    with pytest.raises(hf.HoldfastError, match="has not started the job"):
        next_channel(Stored, started(3))
    assert len(made) == 1


@pytest.mark.parametrize(("active", "said"), [([], "is lost"), (["a query"], "has not started the job within 0 s")])
def test_a_jobmaster_that_starts_is_not_called_lost_and_its_connection_is_closed(monkeypatch, active, said):
    monkeypatch.setattr(attaching, "STARTING_S_MAX", 0.0)
    monkeypatch.setattr(attaching, "SUCCESSOR_S_MAX", 0.0)
    session = beats(monkeypatch, (5, LeaderState.LEADS))
    session.active = active
    session.conf.held.clear()
    with pytest.raises(hf.HoldfastError, match=said):
        next_channel(Stored, started(3))
    assert session.is_closed
