#!/bin/sh
# Prints a Python of version 3.11 or newer that can make virtual environments; 3.11 is what the pins were tried with.
# Debian ships the module for that apart (python3.11-venv): it is installed where that is allowed.
set -eu
. "$(dirname "$0")/packages.sh"

fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'
python=
for name in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
    if "$name" -c "$fits" >/dev/null 2>&1; then
        python=$("$name" -c 'import sys; print(sys.executable)')
        break
    fi
done
if [ -z "$python" ]; then
    say "Holdfast needs Python 3.11 to 3.13, and none was found on the PATH. On Debian 12: apt-get install python3.11 python3.11-venv"
    say "Or name one: make PYTHON=/path/to/python3.11 ..."
    exit 1
fi

if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    install_package "$package" "$python cannot make virtual environments (no module ensurepip)"
fi
echo "$python"
