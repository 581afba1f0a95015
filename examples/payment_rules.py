"""Payments checked against rules that change while the job runs: a broadcast stream that survives a killed TaskManager.

    python -m examples.payment_rules --rounds 8 --kill

In each round some rules come, change or are withdrawn, then a file of payments arrives. Every subtask has all rules;
each payment above the limit of its kind is an alert, with the number of payments that its user has made. The alerts are
compared with a direct computation.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession

import holdfast as hf
from examples.running import session

KINDS, USERS = 6, 500
RULES = "kind BIGINT, limit DOUBLE"
PAYMENTS = "user BIGINT, kind BIGINT, amount DOUBLE"
ALERTS = "user BIGINT, number BIGINT, kind BIGINT, amount DOUBLE, limit DOUBLE"


class Alerts(hf.ProcessFunction):
    """Counts the payments of a user, and gives those above the limit of their kind."""

    rules = hf.BroadcastState()
    payments = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        number = self.payments.value() + 1
        self.payments.update(number)
        rule = self.rules.get(row.kind)
        if rule is not None and row.amount > rule.limit:
            yield row.user, number, row.kind, row.amount, rule.limit


def alerts_job(spark: SparkSession, folder: Path) -> hf.Job:
    """The job: payments by user, rules to every subtask."""
    job = hf.Job(
        spark,
        name="alerts",
        storage=(folder / "storage").as_uri(),
        parallelism=3,
        task_managers=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    rules = job.read(hf.FileSource(str(folder / "rules/*.parquet"), schema=RULES, name="rules"))
    payments = job.read(hf.FileSource(str(folder / "payments/*.parquet"), schema=PAYMENTS, name="payments"))
    # A rule without a limit is withdrawn: all columns besides the key are null.
    known = rules.transform(lambda df: df.where(f"kind < {KINDS}"))
    alerts = payments.key_by("user").process(Alerts(), ALERTS, broadcast={"rules": known.key_by("kind")}, name="alerts")
    alerts.write(hf.ParquetSink((folder / "alerts").as_uri(), name="alerts-out"))
    return job


def draw_rules(chance: np.random.Generator) -> pa.Table:
    """A round's rules: some of the kinds, a third of them withdrawn, and a kind that the job does not know."""
    kinds = [*chance.choice(KINDS, 3, replace=False).tolist(), KINDS]
    limits = [None if chance.random() < 0.33 else float(chance.integers(50, 95)) for _ in kinds]
    return pa.table({"kind": kinds, "limit": pa.array(limits, pa.float64())})


def draw_payments(chance: np.random.Generator, rows: int) -> pa.Table:
    users, kinds = chance.integers(0, USERS, rows), chance.integers(0, KINDS, rows)
    return pa.table({"user": users, "kind": kinds, "amount": np.round(chance.random(rows) * 100, 2)})


class Directly:
    """The same by a loop over all rounds."""

    def __init__(self) -> None:
        self.alerts: Counter[Any] = Counter()
        self._limits: dict[int, float | None] = {}
        self._payments: Counter[int] = Counter()

    def add(self, rules: pa.Table, payments: pa.Table) -> None:
        self._limits.update(zip(rules["kind"].to_pylist(), rules["limit"].to_pylist(), strict=True))
        for row in payments.to_pylist():
            self._payments[row["user"]] += 1
            limit = self._limits.get(row["kind"])
            if limit is not None and row["amount"] > limit:
                self.alerts[row["user"], self._payments[row["user"]], row["kind"], row["amount"], limit] += 1


def put(table: pa.Table, folder: Path, number: int) -> None:
    """Write a file that appears as a whole."""
    pq.write_table(table, folder / f"_{number}")
    (folder / f"_{number}").rename(folder / f"{number:03}.parquet")


def kill_a_task_manager(query: hf.Query) -> None:
    """SIGKILL to a TaskManager's Python worker."""
    port = int(query.taskManagers[0]["address"].rsplit(":", 1)[1])
    for process in psutil.Process().children(recursive=True):
        if any(each.laddr and each.laddr.port == port for each in process.net_connections("tcp")):
            process.kill()
            print(f"kill -9 of TaskManager 0, process {process.pid}")
            return


def watch(folder: Path, rounds: int, rows: int, kill: bool, seed: int) -> bool:
    """Run all rounds. Returns True if the alerts are those of a direct computation."""
    chance, directly = np.random.default_rng(seed), Directly()
    for name in ("rules", "payments"):
        (folder / name).mkdir()
    spark = session()
    query = alerts_job(spark, folder).start(trigger=hf.processing_time("0s"))
    for number in range(rounds):
        rules, payments = draw_rules(chance), draw_payments(chance, rows)
        directly.add(rules, payments)
        put(rules, folder / "rules", number)
        query.processAllAvailable()  # from here on every subtask has the round's rules, also after a restart
        put(payments, folder / "payments", number)
        if kill and number == rounds // 2:
            kill_a_task_manager(query)
        query.processAllAvailable()
    restarts = len(query.restarts)
    query.stop()
    spark.stop()
    table = pq.read_table(folder / "alerts")
    found = Counter(zip(*(table[name].to_pylist() for name in ALERTS.replace(",", "").split()[::2]), strict=True))
    print(f"{rounds} rounds of {rows:,} payments, {found.total():,} alerts, {restarts} restarts")
    if found == directly.alerts and restarts == int(kill):
        print("Equal to a direct computation.")
        return True
    print(f"NOT equal: {(found - directly.alerts).total()} too many, {(directly.alerts - found).total()} missing.")
    return False


def main(
    rounds: Annotated[int, typer.Option(help="So often rules change.")] = 8,
    rows: Annotated[int, typer.Option(help="So many payments in each round.")] = 20_000,
    kill: Annotated[bool, typer.Option(help="Kill a TaskManager on the way.")] = False,
    seed: Annotated[int, typer.Option(help="Of rules and payments.")] = 1,
) -> None:
    """Check payments against rules that change, and compare the alerts with a direct computation."""
    with tempfile.TemporaryDirectory(prefix="holdfast-payment-rules-") as temporary:
        raise typer.Exit(0 if watch(Path(temporary), rounds, rows, kill, seed) else 1)


if __name__ == "__main__":
    typer.run(main)
