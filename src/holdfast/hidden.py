"""Secrets in texts. `hide` is the single function that strips them. Errors call it when they are made, and loggers call
it for every message, log record and traceback, so no other module strips anything.

A secret is recognised in two ways. First, a process `remember`s the values that were given to it as secrets (options,
passwords in URLs and DSNs, environment variables). These are stripped wherever they appear, also percent-encoded or
quoted. Second, text whose form announces a secret (`://user:password@`, `password=…`, signatures, the tokens in S3's
errors) is stripped whatever its value.
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
"""Most values that are remembered; the oldest are then forgotten. A higher value slows every message down."""
CHARACTERS_MIN = 4
"""Least characters of a value that is recognised. Shorter values would blank out ordinary text."""

_SECRET_OPTION = re.compile(r"key|secret|token|passw|sas|credential|jaas|pem$", re.IGNORECASE)
_PLACE_OPTION = re.compile(r"(location|path|file|url|uri|endpoint)$", re.IGNORECASE)
"""Options that say where a secret is stored, and do not contain the secret."""
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
    """Remember values that `hide` must strip from now on in this process."""
    with _lock:
        for value in filter(None, map(str, values)):
            _secrets.pop(value, None)
            _secrets[value] = None
        for old in list(_secrets)[: max(0, len(_secrets) - SECRETS_MAX)]:
            del _secrets[old]


def remember_options(options: Mapping[str, object]) -> None:
    """Remember the secrets among a client's options, which their names give away, and the passwords in its URLs."""
    for name, value in options.items():
        if _SECRET_OPTION.search(name) and not _PLACE_OPTION.search(name):
            remember(value)
        remember(*passwords_of(str(value)))


def remember_environment() -> None:
    """Remember the secrets that libraries read from the environment."""
    remember_options({name: value for name, value in os.environ.items() if _ENVIRONMENT.match(name)})


def passwords_of(url: str) -> list[str]:
    """Return the password in a URL, plain and unquoted, or nothing. It ends at the last `@`: people forget to escape
    `@`."""
    found = _PASSWORD.match(url)
    return [found[1], unquote(found[1])] if found else []


def hide_url(url: str) -> str:
    """Return the URL with `***` instead of its password, and remember the password."""
    for password in passwords_of(url):
        remember(password)
        url = url.replace(f":{password}@", f":{HIDDEN}@")
    return hide(url)


def chained(error: BaseException) -> BaseException | None:
    """Return the error as a cause to chain; None if its text contains a secret, since a traceback would show it."""
    return error if hide(str(error)) == str(error) else None


def hide(text: str) -> str:
    """Return the text with `***` instead of every secret."""
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
    """Return a pattern of all values, the longest first. A value of letters only does not match inside longer words."""
    forms = {form for value in values for form in _forms(value) if len(form) >= CHARACTERS_MIN}
    if not forms:
        return None
    return re.compile("|".join(map(_alone, sorted(forms, key=len, reverse=True))))


def _forms(value: str) -> Iterable[str]:
    """Return the forms in which libraries write a value."""
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
