#!/bin/sh
# Prints the folder with PostgreSQL's programs (initdb, postgres), of version 15 or newer: $POSTGRES_BIN, Debian's folders,
# or the PATH. Where there is none, Debian's package is installed if that is allowed. That package may start a server of its
# own on port 5432; the tests' servers take free ports and folders of their own, so neither disturbs the other.
set -eu
. "$(dirname "$0")/packages.sh"

postgres_version() {
    "$1/postgres" --version 2>/dev/null | sed -n 's/.* \([0-9]*\)[.a-z].*/\1/p' | head -n 1
}

find_postgres() {
    on_path=$(command -v postgres || true)
    if [ -n "$on_path" ]; then
        on_path=$(dirname "$(readlink -f "$on_path")")
    fi
    for folder in "${POSTGRES_BIN:-}" /usr/lib/postgresql/*/bin "$on_path"; do
        if [ -n "$folder" ] && [ -x "$folder/initdb" ] && [ "$(postgres_version "$folder")" -ge 15 ] 2>/dev/null; then
            echo "$folder"
            return 0
        fi
    done
    return 1
}

if ! find_postgres; then
    install_package postgresql "These tests need PostgreSQL 15 or newer, and none was found (POSTGRES_BIN, PATH, /usr/lib/postgresql)"
    find_postgres || { say "PostgreSQL was installed, but no version from 15 on was found under /usr/lib/postgresql; set POSTGRES_BIN."; exit 1; }
fi
