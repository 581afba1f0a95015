"""The page in a real browser: its figures are the query's, and outcomes of checkpoints are told apart.

With HOLDFAST_SCREENSHOTS=<folder> the tests also write the pictures that the docs show.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import holdfast as hf
from holdfast.errors import CheckpointFailed
from holdfast.query import Query
from holdfast.storage.store import open_store
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from holdfast.testing.stores import Fault, FaultyStore
from waiting import until

pytestmark = pytest.mark.kill

DEAD_LETTERS = "memory://browser-dead-letters"
TABS = ("overview", "checkpoints", "state", "processes", "restarts")


CUT = """
return [...document.querySelectorAll('td, th, .tile b, h1, h2, p, svg text')].filter((each) => {
  const box = each.getBoundingClientRect(), inside = each.closest('.scroll');
  if (box.width === 0 || each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0) return box.width > 0;
  const within = inside ? inside.getBoundingClientRect() : document.documentElement.getBoundingClientRect();
  return box.left + (inside ? inside.scrollLeft : 0) < within.left - 1 || (!inside && box.right > within.right + 1);
}).map((each) => each.textContent)
"""
"""Texts that are wider than their elements, or that no scrolling brings into view."""


SCROLLING = """
return [...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.getAttribute('aria-label'))
"""
"""The tables and graphs that do not show all of their columns at once."""


class Moody(hf.ProcessFunction):
    """Counts rows of a key, and refuses cuts while a test says so."""

    refuses = False
    n = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        yield (row.user, self.n.value())

    def is_snapshot_available(self) -> hf.SnapshotAvailability:
        if Moody.refuses:
            return hf.SnapshotAvailability.SOFT_FAILURE.because("an external transaction is open")
        return hf.SnapshotAvailability.AVAILABLE


class Watched:
    """A job that counts an endless sequence by user, its page in the browser, and a store that fails on request."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser
        self.loses_checkpoints = False
        self.cluster: LocalCluster | None = None
        Moody.refuses = False
        job = hf.Job(
            None,
            name="purchases",
            storage="memory://browser",
            parallelism=4,
            task_managers=2,
            ui_port=0,
            max_rows_per_batch=2_000,
            bad_records="dead_letter",
            dead_letters=DEAD_LETTERS,
            checkpoint=hf.CheckpointConfig(trigger=hf.manual(), tolerable_failed_checkpoints=1000),
        )
        rows = job.read(hf.SequenceSource(rows_per_second=20_000, name="clicks"))
        users = rows.map_batches(_users, "user BIGINT")
        users.key_by("user").process(Moody(), "user BIGINT, n BIGINT", name="by-user").write(hf.NoopSink(name="totals"))
        store = FaultyStore(open_store(job.storage), self._fault)
        self.query: Query = start(job, hf.processing_time("50ms"), store=store, on_cluster=self._note)
        assert self.query.uiUrl is not None
        browser.get(self.query.uiUrl)

    def _note(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def _fault(self, operation: str, name: str) -> Fault | None:
        return Fault.FAIL if self.loses_checkpoints and name.startswith("gathered/") and operation == "put" else None

    def open_tab(self, name: str) -> None:
        self.browser.find_element(By.ID, f"tab-{name}").click()

    def text(self) -> str:
        return self.browser.find_element(By.TAG_NAME, "body").text

    def sees(self, *texts: str) -> None:
        until(lambda: all(each in self.text() for each in texts))

    def outcomes(self) -> list[str]:
        """The outcomes in the history, newest first."""
        self.open_tab("checkpoints")
        script = "return [...document.querySelectorAll('[aria-label=\"history of checkpoints\"] tbody tr')]"
        script += ".map((row) => row.cells.length > 1 ? row.cells[2].textContent : '')"
        return [each for each in self.browser.execute_script(script) if each]

    def is_drawn_to_size(self) -> bool:
        return bool(self.browser.execute_script("return WIDTH === Math.max(320, view.clientWidth - 32)"))

    def picture(self, name: str) -> None:
        """Save pictures of the page, if `HOLDFAST_SCREENSHOTS` names a folder: light, dark, and 400 px wide."""
        folder = os.environ.get("HOLDFAST_SCREENSHOTS")
        if folder is None:
            return
        for kind, scheme, width in (("", "light", 1280), ("-dark", "dark", 1280), ("-narrow", "light", 400)):
            scheme_is = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme_is)
            self.browser.set_window_size(width, 1000)
            until(self.is_drawn_to_size)
            height = self.browser.execute_script("return document.body.scrollHeight")
            self.browser.set_window_size(width, min(1600, height + 160))
            until(self.is_drawn_to_size)
            self.browser.save_screenshot(str(Path(folder) / f"{name}{kind}.png"))


def _users(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give the user of each row; the first three rows have none, and are dead letters."""
    values = batch.column("value")
    return pa.RecordBatch.from_arrays([pc.if_else(pc.less(values, 3), None, pc.bit_wise_and(values, 1023))], ["user"])


@pytest.fixture
def watched(browser: Chrome) -> Iterator[Watched]:
    made = Watched(browser)
    yield made
    made.query.stop()


def test_the_page_follows_a_job_through_checkpoints_that_complete_are_refused_and_fail_and_a_restart(
    watched: Watched,
) -> None:
    query = watched.query
    until(lambda: query.totals.batches > 10)
    number = query.trigger_checkpoint(30)
    watched.sees("purchases", "clicks", "map_batches(_users)", "by-user", "totals", "Processing")
    watched.sees("Bad rows since the start, by reason", DEAD_LETTERS, "all times are in UTC")
    reasons = "return [...document.querySelectorAll('[aria-label=\"bad rows by reason\"] tbody td')]"
    reasons += ".map((each) => each.textContent)"
    rows, source, operator, reason = watched.browser.execute_script(reasons)
    assert (rows, source, operator) == ("3", "clicks", "by-user") and "(user)" in reason
    until(lambda: watched.outcomes()[:1] == ["completed"])
    watched.sees(f"record {number}")

    Moody.refuses = True
    answered = query.totals.batches + 2
    until(lambda: query.totals.batches >= answered)
    with pytest.raises(TimeoutError):
        query.trigger_checkpoint(1)
    until(lambda: watched.outcomes()[:2] == ["refused", "completed"])
    watched.sees("an external transaction is open")
    Moody.refuses = False
    until(lambda: watched.outcomes()[:1] == ["completed"])

    watched.loses_checkpoints = True
    with pytest.raises(CheckpointFailed):
        query.trigger_checkpoint(30)
    watched.loses_checkpoints = False
    until(lambda: watched.outcomes()[:1] == ["failed"])
    saved = query.savepoint("memory://browser-savepoint")
    watched.sees("Savepoints", saved.url)
    watched.picture("page-checkpoints")
    _figures_equal_those_of_the_query(watched)

    assert watched.cluster is not None
    watched.cluster.kill(1)
    until(lambda: bool(query.restarts))
    watched.open_tab("restarts")
    watched.sees(query.restarts[0].split(":")[0])
    _a_loss_is_told_whole(watched)
    for tab in TABS:
        watched.open_tab(tab)
        watched.sees(
            {"state": "by-user", "processes": "TaskManager 1", "restarts": query.restarts[0].split(":")[0]}.get(
                tab, "purchases"
            )
        )
        watched.picture(f"page-{tab}" if tab != "checkpoints" else "page-checkpoints-after")


def _a_loss_is_told_whole(watched: Watched) -> None:
    """The page draws a loss of a job that drops: this job has none, so the answer of the JSON is made here."""
    loss = {"at_s": 1.0, "epoch": 1, "checkpoint": 7, "cause": "TaskManager 1 ended", "rows_dropped": 1200}
    ranges = [{"source": "feed", "split": str(split), "start": 40, "stop": 160} for split in range(9)]
    loss |= {"rows_forgotten": 34, "ranges": ranges, "acknowledged": False}
    found = {"error": None, "restarts": [], "events": [], "dropping": 0, "lost_rows": [loss]}
    drawn = "return drawRestarts(arguments[0]).map((each) => each.textContent).join(' ')"
    text = watched.browser.execute_script(drawn, found)
    for part in ("71,20034feed/0: 40 to 160, feed/1", "and 1 more splits", "noTaskManager 1 ended"):
        assert part in text, text


def _figures_equal_those_of_the_query(watched: Watched) -> None:
    """Check that the tiles of the page equal the query's counts."""
    totals = watched.query.totals
    watched.open_tab("checkpoints")
    tile = "return [...document.querySelectorAll('.tile')].find((each) => each.lastChild.textContent === arguments[0])"
    for label, figure in (("completed", totals.completed_checkpoints), ("failed", totals.failed_checkpoints)):
        shown = watched.browser.execute_script(f"{tile}.firstChild.textContent", label)
        assert shown == str(figure)
    watched.open_tab("overview")
    row = "return [...document.querySelectorAll('[aria-label=\"sinks\"] tbody td')].map((each) => each.textContent)"
    staged = watched.query.view().sink_rows["totals"]
    until(lambda: _count(watched.browser.execute_script(row)) >= staged)
    assert _count(watched.browser.execute_script(row)) <= watched.query.view().sink_rows["totals"]
    watched.open_tab("state")
    watched.sees("fullest key group by the mean")


def _count(cells: list[str]) -> int:
    """The number of rows in the cells of a sink's row; 0 while the page is drawn."""
    return int(cells[1].replace(",", "")) if len(cells) > 1 and cells[0] == "totals" else 0


def test_the_page_is_used_by_keyboard_and_fits_a_narrow_screen(watched: Watched) -> None:
    browser = watched.browser
    watched.sees("by-user")
    browser.find_element(By.ID, "tab-overview").send_keys(Keys.ARROW_RIGHT)
    until(lambda: browser.find_element(By.ID, "tab-checkpoints").get_attribute("aria-selected") == "true")
    assert browser.switch_to.active_element.get_attribute("id") == "tab-checkpoints"
    until(lambda: bool(browser.find_elements(By.CSS_SELECTOR, '[aria-label="history of checkpoints"]')))
    browser.execute_script("document.querySelector('[aria-label=\"history of checkpoints\"]').focus()")
    browser.execute_script("window.drawn = document.activeElement")
    watched.query.trigger_checkpoint(30)
    rows = "return window.drawn.querySelectorAll('tbody button').length"
    until(lambda: browser.execute_script(rows) >= 2)
    assert browser.execute_script("return window.drawn.isConnected && window.drawn === document.activeElement"), (
        "an element with new figures is the same element, so that nothing flickers and the focus stays"
    )
    for width in (400, 1280):
        browser.set_window_size(width, 900)
        until(watched.is_drawn_to_size)
        for tab in TABS:
            watched.open_tab(tab)
            until(lambda: bool(browser.find_elements(By.CSS_SELECTOR, "#view h2")))
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= browser.execute_script("return window.innerWidth"), f"{tab} scrolls sideways at {width} px"
            assert browser.execute_script(CUT) == [], f"{tab} cuts texts at {width} px"
            if width == 1280:
                assert browser.execute_script(SCROLLING) == [], f"{tab} has tables that are wider than the page"
    browser.set_window_size(1200, 1000)


def test_nothing_on_the_page_comes_from_another_host_and_the_console_is_clean(watched: Watched) -> None:
    watched.sees("by-user")
    for tab in TABS:
        watched.open_tab(tab)
    entries = "return performance.getEntriesByType('resource').map((each) => new URL(each.name).host)"
    hosts = set(watched.browser.execute_script(entries))
    assert watched.query.uiUrl is not None
    own = watched.query.uiUrl.split("/")[2]
    assert hosts == {own}
    # The page of the test before may have asked once more after its query had ended.
    severe = [entry for entry in watched.browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [entry for entry in severe if own in entry["message"]] == []
