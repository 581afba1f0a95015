"""The transforms that are refused, and some that are not, analysed on Spark Connect in a process of its own.

    python connect_script.py sc://127.0.0.1:<port> <folder>

PySpark's functions are those of Spark Connect in the whole process once it has made such a session.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.errors import JobRefused
from holdfast.spark.hosts import open_host
from holdfast.spark.transforms import analyse_transform

ALLOWED = {
    "filters": lambda df, _: df.where(F.col("v") % 2 == 0),
    "explodes": lambda df, _: df.withColumn("e", F.explode(F.array("k", "v"))),
    "sorts a partition": lambda df, _: df.sortWithinPartitions("k"),
    "broadcasts a table": lambda df, static: df.join(F.broadcast(static["static table"]), "k"),
    "a left join": lambda df, static: df.join(static["static table"], "k", "left"),
    "a table from a shuffle": lambda df, static: df.join(F.broadcast(static["static table"].groupBy("k").count()), "k"),
    "a subquery": lambda df, _: df.where("k >= (SELECT min(id) FROM range(3))"),
    "a function of Python": lambda df, _: df.withColumn("p", F.udf(lambda v: v + 1, "bigint")("v")),
    "drops all rows": lambda df, _: df.where("false"),
    "a column named rand(1)": lambda df, _: df.select(F.col("k").alias("rand(1)"), "v").where("`rand(1)` > 0"),
}


def main(url: str, folder: str) -> None:
    spark = SparkSession.builder.remote(url).create()
    import test_spark_refusals as refusals  # whose functions of Python are Connect's only from now on

    # Connect knows the size of a local table, and so broadcasts this one.
    del refusals.SHUFFLES["joins what Spark does not broadcast"]
    kinds = {
        "allowed": ALLOWED,
        "needs a shuffle": refusals.SHUFFLES,
        "gives another value when a batch is repeated": refusals.NONDETERMINISTIC,
        "change the number of partitions": refusals.PARTITIONS,
        "must take its rows from the DataFrame it is given": refusals.OTHER_ROWS,
    }
    host = open_host(spark)
    static = {name: make(spark) for name, make in refusals.STATIC.items()}
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    found: dict[str, dict[str, str]] = {}
    for kind, transforms in kinds.items():
        for name, fn in transforms.items():
            try:
                analyse_transform(host, lambda df, fn=fn: fn(df, static), schema)
                said = "allowed"
            except JobRefused as error:
                said = str(error)
            found.setdefault(kind, {})[name] = said
    Path(folder, "refused.json").write_text(json.dumps(found))
    host.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
