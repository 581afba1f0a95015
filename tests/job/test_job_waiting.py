"""Drivers in waiting, in process: refused at once, led on time, ended or promoted, exact after a takeover."""

from contextlib import ExitStack

import job_kit
import pytest

import holdfast as hf
from holdfast import testing
from holdfast.errors import Fenced, HoldfastError, JobRefused, QueryFailed, SettingsError
from holdfast.leadership import heartbeat
from holdfast.leadership.heartbeat import Heartbeat
from waiting import until

SOON = hf.processing_time("0s")
ROWS = [{"k": i % 3, "v": i} for i in range(30)]


def counting(storage, feed, sink, value="v", **settings):
    job = job_kit.new_job(storage, checkpoint=job_kit.SOON, **settings)
    job.read(feed).key_by("k").aggregate(total=hf.sum(value), emit="changes", name="totals").write(sink)
    return job


class Drivers(ExitStack):
    """Drivers of one job on one storage, one feed and one sink, which all are stopped at the end."""

    def __init__(self):
        super().__init__()
        self.storage, self.feed, self.sink = job_kit.new_storage(), job_kit.Feed(name="feed"), hf.MemorySink(name="out")

    def start(self, **options):
        query = testing.start(counting(self.storage, self.feed, self.sink), SOON, **{"standby": True, **options})
        self.callback(query.stop)
        return query

    def totals(self):
        return {key: row["total"] for key, row in job_kit.newest(self.sink.rows(), "k").items()}


def sums(rows):
    return {k: sum(row["v"] for row in rows if row["k"] == k) for k in range(3)}


def knows_the_leader(query):
    return query.isStandby and query.status["standby"]["leaderBeats"] is not None


def test_the_first_driver_leads_and_the_second_says_that_it_waits():
    with Drivers() as drivers:
        first = drivers.start()
        assert first.await_lead(job_kit.WAIT_S_MAX)
        second = drivers.start()
        until(lambda: knows_the_leader(second))
        assert second.status["message"].startswith("Standby: watches the leader, epoch 1")
        assert second.isActive and second.id == first.id
        assert second.lastProgress is None and second.uiUrl is None
        with pytest.raises(HoldfastError, match="waits for the end of another that leads"):
            second.trigger_checkpoint()
        assert not second.awaitTermination(0.01)


@pytest.mark.parametrize("setting", ["end", "promote"])
def test_a_stop_of_the_leader_ends_or_promotes_a_driver_in_waiting_as_is_set(setting):
    with Drivers() as drivers:
        first = drivers.start()
        assert first.await_lead(job_kit.WAIT_S_MAX)
        drivers.feed.put(ROWS)
        first.processAllAvailable()
        second = drivers.start(on_leader_stop=setting)
        until(lambda: knows_the_leader(second))
        first.stop()
        assert second.await_lead(job_kit.WAIT_S_MAX) == (setting == "promote")
        if setting == "end":
            assert second.awaitTermination(job_kit.WAIT_S_MAX) and not second.isActive
            assert "has ended: stopped" in second.status["message"]
            return
        drivers.feed.put(ROWS)
        second.processAllAvailable()
        assert drivers.totals() == sums(2 * ROWS)
        assert not second.status["message"].startswith("Standby")


def test_of_two_that_wait_for_a_silent_leader_one_leads_and_the_leader_is_fenced(monkeypatch):
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.05)
    with Drivers() as drivers:
        first = drivers.start()
        assert first.await_lead(job_kit.WAIT_S_MAX)
        drivers.feed.put(ROWS)
        first.processAllAvailable()
        others = [drivers.start(takeover_after="2s") for _ in range(2)]
        until(lambda: all(knows_the_leader(each) for each in others))
        until(lambda: all(each.status["standby"]["takesOverAfterSeconds"] == 2.0 for each in others))
        beat = Heartbeat._beat
        epoch = first.view().epoch
        monkeypatch.setattr(Heartbeat, "_beat", lambda self, state: self._epoch == epoch or beat(self, state))
        until(lambda: any(not each.isStandby for each in others))
        (second,) = [each for each in others if not each.isStandby]
        (third,) = [each for each in others if each.isStandby]
        until(lambda: third.isStandby and third.status["standby"]["leaderEpoch"] == second.view().epoch)
        drivers.feed.put(ROWS)
        second.processAllAvailable()
        with pytest.raises(QueryFailed) as failed:
            first.awaitTermination(job_kit.WAIT_S_MAX)
        assert isinstance(failed.value.__cause__, Fenced)
        assert drivers.totals() == sums(2 * ROWS)


def test_code_that_does_not_fit_the_record_is_refused_when_the_driver_begins_to_wait():
    with Drivers() as drivers:
        first = drivers.start()
        drivers.feed.put(ROWS)
        first.await_lead(job_kit.WAIT_S_MAX)
        first.processAllAvailable()
        job = job_kit.new_job(drivers.storage)
        job.read(drivers.feed).key_by("v").aggregate(total=hf.sum("k"), name="totals").write(hf.NoopSink(name="out"))
        with pytest.raises(JobRefused, match="totals"):
            testing.start(job, SOON, standby=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start_from": 3}, "start_from and standby=True are not allowed together"),
        ({"drop_state": ["a"]}, "drop_state and standby=True"),
        ({"takeover_after": "0s"}, "takeover_after='0s'"),
        ({"on_leader_stop": "wait"}, "on_leader_stop='wait'"),
        ({"standby": 1}, "standby=1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words):
    with pytest.raises(SettingsError, match=words):
        job_kit.new_job(**{"standby": True, **options})
