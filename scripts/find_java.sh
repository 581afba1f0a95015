#!/bin/sh
# Prints the home of a Java of version 17 or newer: $JAVA_HOME, the one on the PATH, or one of the system's folders.
# Where there is none, OpenJDK 17 is installed from the system's packages if that is allowed.
set -eu
. "$(dirname "$0")/packages.sh"

java_version() {
    "$1/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'
}

find_java() {
    on_path=$(command -v java || true)
    if [ -n "$on_path" ]; then
        on_path=$(dirname "$(dirname "$(readlink -f "$on_path")")")
    fi
    for home in "${JAVA_HOME:-}" "$on_path" /usr/lib/jvm/*17* /usr/lib/jvm/*; do
        if [ -n "$home" ] && [ -x "$home/bin/java" ] && [ "$(java_version "$home")" -ge 17 ] 2>/dev/null; then
            echo "$home"
            return 0
        fi
    done
    return 1
}

if ! find_java; then
    install_package openjdk-17-jre-headless "Spark needs Java 17 or newer, and none was found (JAVA_HOME, PATH, /usr/lib/jvm)"
    find_java || { say "Java 17 was installed, but not found under /usr/lib/jvm; set JAVA_HOME."; exit 1; }
fi
