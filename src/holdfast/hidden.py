"""Secrets in texts. `hide` is the single function that strips them. Errors, when they are made, and loggers call it for
every message, log record and traceback, so no other module strips anything.

A secret is recognised in two ways. Values that were given to Holdfast as secrets (options, passwords in URLs and DSNs,
variables of the environment) are `remember`ed by the process that uses them, and are stripped wherever they come up,
percent-encoded or quoted too. Places that hold a secret by their form (`://user:password@`, `password=…`, signatures,
the tokens in S3's errors) are stripped whatever they hold.
"""

import os
import re
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from html import escape
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
SECRETS_MAX = 2_000
"""Values that are remembered; the oldest is forgotten beyond. A higher value slows every message down."""
CHARACTERS_MIN = 4
"""Characters of a value from which on it is recognised; shorter values would blank ordinary text."""

_SECRET_OPTION = re.compile(r"key|secret|token|passw|sas|credential|jaas|pem$", re.IGNORECASE)
_PLACE_OPTION = re.compile(r"(location|path|file|url|uri|endpoint)$", re.IGNORECASE)
"""Options that say where a secret is found, and do not hold it."""
_ENVIRONMENT = re.compile(r"(AWS|AZURE|GOOGLE|GCS|GCP|PG|KAFKA|HOLDFAST)", re.IGNORECASE)
_PASSWORD = re.compile(
    r"\W*(?:https?://[^/\s@:]*:(?!\d{1,5}/)|(?!https?:)[A-Za-z][\w+.-]*://[^/\s@:]*:)(.*)@", re.DOTALL
)
_USER_INFO = re.compile(r"""(?P<scheme>\b[A-Za-z][\w+.-]*://)[^\s'"/@:]*:(?!\d{1,5}(?:[/?#\s'",]|$))[^\s'"]*@""")
_NUMERIC_USER_INFO = re.compile(r"""(?P<scheme>\b[A-Za-z][\w+.-]*://)[^\s'"/@:]*:\d+@""")
_NAMED = re.compile(
    r"""((?:\b|_)(?:sig|signature|X-Amz-[A-Za-z-]+|[\w.-]*(?:password|passwd|secret|token))\s*=\s*)"""
    r"""(?:'(?:[^'\\]|\\.)*'|"[^"]*"|[^&\s"')]+)""",
    re.IGNORECASE,
)
_ELEMENT = re.compile(r"(<(?:Token-\d+|\w*Token|SignatureProvided|StringToSign\w*|AWSAccessKeyId)>)[^<]*")

_secrets: dict[str, None] = {}
_lock = threading.Lock()


def remember(*values: object) -> None:
    """Note values that `hide` has to strip from now on, in this process."""
    with _lock:
        for value in filter(None, map(str, values)):
            _secrets.pop(value, None)
            _secrets[value] = None
        for old in list(_secrets)[: max(0, len(_secrets) - SECRETS_MAX)]:
            del _secrets[old]


def remember_options(options: Mapping[str, object]) -> None:
    """Note the secrets among the options of a client, by their names, and the passwords in its URLs."""
    for name, value in options.items():
        if _SECRET_OPTION.search(name) and not _PLACE_OPTION.search(name):
            remember(value)
        remember(*passwords_of(str(value)))


def remember_environment() -> None:
    """Note the secrets that libraries take from the environment."""
    remember_options({name: value for name, value in os.environ.items() if _ENVIRONMENT.match(name)})


def passwords_of(url: str) -> list[str]:
    """Return the password in a URL, up to its last `@`, since people forget to escape `/` and `@`; or nothing."""
    found = _PASSWORD.match(url)
    return [found[1], unquote(found[1])] if found else []


def hide_url(url: str) -> str:
    """Return the URL with `***` in the place of its password, which is remembered."""
    for password in passwords_of(url):
        remember(password)
        url = url.replace(f":{password}@", f":{HIDDEN}@")
    return hide(url)


def chained(error: BaseException) -> BaseException | None:
    """Return the error as a cause to chain; None if its text has a secret, which a traceback would show."""
    return error if hide(str(error)) == str(error) else None


def hide(text: str) -> str:
    """Return the text with `***` in the place of every secret."""
    with _lock:
        known = tuple(_secrets)
    pattern = _pattern(known)
    if pattern is not None:
        text = pattern.sub(HIDDEN, text)
    if "://" in text:
        text = _USER_INFO.sub(rf"\g<scheme>{HIDDEN}@", text)
        text = _NUMERIC_USER_INFO.sub(rf"\g<scheme>{HIDDEN}@", text)
    if "=" in text:
        text = _NAMED.sub(rf"\1{HIDDEN}", text)
    return _ELEMENT.sub(rf"\1{HIDDEN}", text) if "<" in text else text


@lru_cache(maxsize=4)
def _pattern(values: tuple[str, ...]) -> re.Pattern[str] | None:
    """Pattern of all values, the longest first. Words of letters alone are no part of longer words."""
    forms = {form for value in values for form in _forms(value) if len(form) >= CHARACTERS_MIN}
    if not forms:
        return None
    return re.compile("|".join(map(_alone, sorted(forms, key=len, reverse=True))))


def _forms(value: str) -> Iterable[str]:
    """The ways in which libraries write a value."""
    return (
        value,
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        escape(value, quote=False),
        repr(value)[1:-1],
    )


def _alone(form: str) -> str:
    if len(form) >= 8 and not form.isalpha():
        return re.escape(form)
    before, after = (r"(?<![^\W_])" if form[0].isalnum() else ""), (r"(?![^\W_])" if form[-1].isalnum() else "")
    return before + re.escape(form) + after
