"""The command that compiles kernels in advance: for an image, an archive, or a machine.

    holdfast kernels compile                                      for this processor, where processes look for them
    holdfast kernels compile --target x86-64-v3 --to /opt/kernels for all processors of a level, into a folder

Small jobs (`testing/usual_jobs.py`) run in this process, so the kernels that usual jobs call are compiled. Kernels for
rarer types are compiled when a job first needs them.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.common import say, told
from holdfast.errors import HoldfastError
from holdfast.kernels import places
from holdfast.kernels.shelf import SHELF
from holdfast.printable import without_warnings

app = typer.Typer(help="Compile kernels beforehand.", no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def kernels() -> None:
    """Compile kernels in advance, so that jobs need not wait for it."""


@app.command("compile")
def compile_kernels(
    target: Annotated[
        str, typer.Option(help="Processor: x86-64-v2, x86-64-v3, x86-64-v4, or a name of LLVM's. Default: this one.")
    ] = "",
    to: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="Folder for NUMBA_CACHE_DIR. Default: the first folder that processes search."
        ),
    ] = "",
) -> None:
    """Compile the kernels of usual jobs."""
    with told():
        if target:
            raise typer.Exit(_in_process_for(target, to))
        _compile_into(Path(to).absolute() / "holdfast" if to else _default_folder())


def _in_process_for(target: str, to: str) -> int:
    """Compile in another process, since Numba reads its processor's name once; without this processor's features."""
    environment = os.environ | {"NUMBA_CPU_NAME": target, "NUMBA_CPU_FEATURES": ""}
    place = ["--to", to] if to else []
    command = [sys.executable, "-m", "holdfast.cli", "kernels", "compile", *place]
    return subprocess.run(command, env=environment, check=False).returncode


def _default_folder() -> Path:
    for folder in places.folders():
        if places.can_be_written(folder) and places.is_own_cache(str(folder)):
            return folder
    searched = ", ".join(map(str, places.folders()))
    raise HoldfastError(
        f"no folder of kernels can be written: {searched}. Name one: --to FOLDER, and {places.VARIABLE}"
    )


def _compile_into(folder: Path) -> None:
    if not places.can_be_written(folder):
        raise HoldfastError(f"{folder} cannot be written: name another folder by --to")
    if not places.is_own_cache(str(folder)):
        raise HoldfastError(f"other users can write to {folder}, so that no process would use it")
    from holdfast.kernels.cache import compiled
    from holdfast.kernels.processors import own_processor
    from holdfast.testing.usual_jobs import run_usual_jobs

    SHELF.only(folder)
    began_s = time.monotonic()
    with without_warnings():  # the usual jobs lose their TaskManagers on purpose
        for _ in run_usual_jobs():
            shown = f"{compiled().kernels} kernels, {time.monotonic() - began_s:.0f} s"
            if sys.stderr.isatty():
                print(f"\r{shown}", end="", file=sys.stderr, flush=True)
    files = [each for each in (folder / own_processor().folder).iterdir() if len(each.name) == 64]
    size = sum(each.stat().st_size for each in files)
    say(f"{len(files)} kernels, {size / 1e6:.1f} MB, of which {compiled().kernels} are new: {folder}")
