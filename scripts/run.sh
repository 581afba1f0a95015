#!/bin/sh
# Runs a command in the project's environment: its Python (Spark's workers too), and a Java that Spark can use.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$scripts")

JAVA_HOME=$("$scripts/find_java.sh")
PATH="$root/.venv/bin:$PATH"
PYSPARK_PYTHON="$root/.venv/bin/python"
PYSPARK_DRIVER_PYTHON="$PYSPARK_PYTHON"
export JAVA_HOME PATH PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
# Another Spark's settings must not reach the one in .venv.
unset SPARK_HOME SPARK_CONF_DIR PYTHONHOME
# Without a cache of compiled modules each process, Spark's workers too, would compile all of Holdfast and the tests anew.
unset PYTHONDONTWRITEBYTECODE
exec "$@"
