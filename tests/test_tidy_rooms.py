"""Each room says what lies in it, truly, and no modules know each other in a circle."""

import ast
import re
from pathlib import Path

import pytest
from test_tidy import PACKAGE, SOURCES, where

ROOMS = sorted({path.parent for path in SOURCES} - {PACKAGE})
FILES = re.compile(r"^Files in reading order: (.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)


def named_files(room: Path) -> list[str]:
    """The names in the paragraph of a room's docstring that lists its files; a folder's name ends with a slash."""
    listed = FILES.search(ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or "")
    return re.findall(r"`(\w+/?)`", listed[1]) if listed else []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(PACKAGE).as_posix())
def test_the_docstring_of_a_room_names_each_of_its_files_once(room):
    files = [path.stem for path in SOURCES if path.parent == room and path.stem != "__init__"]
    folders = [f"{other.name}/" for other in ROOMS if other.parent == room]
    assert sorted(named_files(room)) == sorted([*files, *folders]), where(room / "__init__.py")
