"""The browser in which pages are opened."""

from chromium_kit import browser as browser
