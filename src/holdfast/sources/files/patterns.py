"""Patterns of paths: globs as regular expressions, and names that are never matched. Pure."""

import re
from collections.abc import Iterator

GLOB = re.compile(r"[*?\[{]")


def is_glob(pattern: str) -> bool:
    return GLOB.search(pattern) is not None


def hidden(name: str, is_folder: bool) -> bool:
    """Return whether a name is meant for files that are not finished yet, and for markers.

    A folder `_column=value` holds a partition, as for Spark.
    """
    return name.startswith(".") or (name.startswith("_") and not (is_folder and "=" in name))


def any_hidden(name: str) -> bool:
    """Return whether a file, or a folder on the way to it, is hidden."""
    *folders, file = name.split("/")
    return hidden(file, False) or any(hidden(folder, True) for folder in folders)


def fixed_folder(pattern: str) -> str:
    """Return the deepest folder that holds everything that a pattern can match."""
    found = GLOB.search(pattern)
    return pattern[: found.start() if found else len(pattern)].rpartition("/")[0]


def matcher(pattern: str) -> re.Pattern[str]:
    """Return a glob as a regular expression over whole paths.

    `*` and `?` stay within a path segment, `**` does not, `[…]` and `{a,b}` are as in a shell. A path without
    wildcards matches itself, and everything below it.
    """
    if not is_glob(pattern):
        return re.compile(re.escape(pattern.rstrip("/")) + r"(/.*)?", re.DOTALL)
    return re.compile("".join(_translate(pattern)), re.DOTALL)


def _translate(pattern: str) -> Iterator[str]:
    tokens = re.compile(r"\*\*/|\*\*|\*|\?|\[(?P<set>!?\]?[^\]]*)\]|\{(?P<either>[^{}]*)\}|.", re.DOTALL)
    for token in tokens.finditer(pattern):
        text = token.group()
        if token["set"] is not None:
            inside = token["set"].replace("\\", "\\\\")
            yield f"[{'^' + inside[1:] if inside.startswith('!') else inside}]"
        elif token["either"] is not None:
            yield "(" + "|".join("".join(_translate(part)) for part in token["either"].split(",")) + ")"
        else:
            yield {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(text, re.escape(text))
