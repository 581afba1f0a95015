#!/bin/sh
# Makes the virtual environment .venv with exactly the versions of constraints.txt and Holdfast itself, editable.
# The Makefile calls it when constraints.txt or pyproject.toml are newer than the last time it succeeded.
set -eu
cd "$(dirname "$0")/.."

java=$(scripts/find_java.sh)
python=$(scripts/find_python.sh)
echo "Setting up .venv with $python and Java in $java"
if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    "$python" -m venv .venv
fi
pip() {
    .venv/bin/python -m pip --disable-pip-version-check "$@"
}
pip install --quiet -c constraints.txt setuptools wheel
# Without build isolation, because an isolated build would fetch a setuptools that is not pinned. Python compiles a module
# when it is first imported: to compile all modules of all packages takes longer, and most are never imported.
pip install --quiet --no-compile --no-build-isolation -c constraints.txt -e '.[demo,dev,docs]'
pip check
touch .venv/set-up
