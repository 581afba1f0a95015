"""Parsing of the URLs of stores and targets."""

from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import SettingsError
from holdfast.hidden import hide, passwords_of, remember


def split_url(url: str, whose: str = "storage") -> SplitResult:
    """Split a URL, whose password no message shows from now on.

    Raises `SettingsError` if it is no URL, or if its path is not UTF-8: such names would become one.
    """
    remember(*passwords_of(url))
    try:
        parts = urlsplit(url)
        path_of(parts)
    except UnicodeError:
        raise SettingsError(
            f"{whose} {hide(url)!r}: the path has bytes that are not UTF-8: stores keep names as text, in which "
            "different bytes would become the same name. Rename the folder"
        ) from None
    except ValueError:  # its text may show a password
        raise SettingsError(f"{whose} {hide(url)!r}: cannot be read as a URL") from None
    return parts


def path_of(parts: SplitResult) -> str:
    """Return the path with its percent-escapes resolved. Raises `UnicodeError` if it is not UTF-8."""
    path = unquote(parts.path, errors="strict")
    path.encode()
    return path
