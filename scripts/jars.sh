#!/bin/sh
# Prints the folder with the jars that a list of Maven's names: scripts/jars.sh examples/kafka/pom.xml
# The first call gets them with Maven, in some 20 seconds.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/packages.sh"

pom="$root/$1"
jars="$root/build/jars/$(cksum <"$pom" | cut -d' ' -f1)"

if [ ! -d "$jars" ]; then
    if ! command -v mvn >/dev/null; then
        install_package maven "The jars of $1 come by Maven; mvn was not found"
    fi
    say "Getting the jars of $1 with Maven"
    mkdir -p "$root/build/jars"
    fetched=$(mktemp -d "$root/build/jars/fetched.XXXXXX")
    mvn --batch-mode --quiet -Dstyle.color=never -f "$pom" \
        org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$fetched/jars" >&2
    # Where another process was faster, its folder is as good.
    mv -T "$fetched/jars" "$jars" 2>/dev/null || [ -d "$jars" ]
    rm -rf "$fetched"
fi
echo "$jars"
