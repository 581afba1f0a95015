"""Pages of documentation as programs: their snippets in order, with the lines that a reader is not shown.

    ```python                      a snippet; all of a page share a namespace, in order
    ```text  right after it        the output of that snippet, exactly
    <!-- setup: … -->              code that runs in its place, hidden from readers
    <!-- spark -->                 right before a snippet: it needs a Spark session
    ```py                          code of another library, shown beside its equivalent; not run

Snippets run in a folder of the test's own; paths below `/data/` lie there too, and `memory://` stores belong to the
test alone.
"""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_PART = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<output>.*?)^```$)?|^<!-- setup:(?P<setup>.*?)-->$",
    re.MULTILINE | re.DOTALL,
)


_PLACE = re.compile(r"\(\S+, line \d+\)")
"""Pattern of the place where an error was raised, which is not the same in a page as in a reader's program."""


@dataclass(frozen=True)
class Snippet:
    """`line` is that of its first line of code in the page."""

    page: Path
    line: int
    code: str
    output: str | None
    spark: bool


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def snippets(page: Path) -> list[Snippet]:
    """All of a page, hidden ones too, in order."""
    text = page.read_text()
    found = []
    for match in _PART.finditer(text):
        part = "code" if match["code"] is not None else "setup"
        line = text.count("\n", 0, match.start(part)) + 1
        needs_spark = text[: match.start()].rstrip().endswith("<!-- spark -->")
        found.append(Snippet(page, line, match[part], match["output"], needs_spark))
    return found


def run(some: list[Snippet], folder: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Run snippets in order, compare the output of each with its page, and return the names that they have made."""
    namespace = {"__name__": "__main__", **names}
    for snippet in some:
        code = snippet.code.replace("/data/", f"{folder}/").replace("memory://", f"memory://{folder.name}-")
        compiled = compile("\n" * (snippet.line - 1) + code, str(snippet.page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
            exec(compiled, namespace)
        if snippet.output is not None:
            where = f"{name_of(snippet.page)}, line {snippet.line}"
            found = printed.getvalue().strip()
            assert _PLACE.sub("", found) == _PLACE.sub("", snippet.output.strip()), (
                f"{where} prints something else:\n{found}"
            )
    return namespace
