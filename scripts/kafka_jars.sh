#!/bin/sh
# Prints the folder with the jars of an Apache Kafka broker, or of another list of Maven's in examples/kafka, by its name.
# The first call gets them with Maven, in some 20 seconds.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/packages.sh"

pom="$root/examples/kafka/${1:-pom}.xml"
jars="$root/build/kafka/$(cksum <"$pom" | cut -d' ' -f1)"

if [ ! -d "$jars" ]; then
    if ! command -v mvn >/dev/null; then
        install_package maven "A Kafka broker is needed (its jars come by Maven), or HOLDFAST_KAFKA=host:port; mvn was not found"
    fi
    say "Getting the jars of Apache Kafka with Maven"
    mkdir -p "$root/build/kafka"
    fetched=$(mktemp -d "$root/build/kafka/fetched.XXXXXX")
    mvn --batch-mode --quiet -Dstyle.color=never -f "$pom" \
        org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$fetched/jars" >&2
    # Where another process was faster, its folder is as good.
    mv -T "$fetched/jars" "$jars" 2>/dev/null || [ -d "$jars" ]
    rm -rf "$fetched"
fi
echo "$jars"
