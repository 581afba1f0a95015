"""Chromium, headless, for the tests of pages: a browser for each file of them.

A browser that stays open goes on drawing its last page, without a graphics card: in a run of all tests that took more
processor time than the tests of pages.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FIND = Path(__file__).parents[1] / "scripts" / "find_chromium.sh"
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,1000",
)
"""Root may not use the sandbox; the others keep the browser from talking to other hosts."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    program, driver = subprocess.run([FIND], check=True, capture_output=True, text=True).stdout.split()
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(option)
    made = webdriver.Chrome(options, Service(driver))
    yield made
    made.quit()
