"""What the owner of a table does to it, in Spark: the audit reads it out of Delta's log, and nights go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from penstock.pipeline import job
from penstock.pipeline.etl import delta, plan, session, table
from penstock.pipeline.etl.declared import parse
from penstock.pipeline.etl.errors import Refused
from penstock.pipeline.etl.ledger import NightCommit
from penstock.pipeline.etl.load import Outcome
from penstock.pipeline.etl.night import Deleted, parse_night
from support.etl_world import Loading, World
from support.harness import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NIGHTS = ["2013-01-01", "2013-01-02", "2013-01-03"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, shared_broker: BrokerProcess) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    started = session.start(job.load(World(shared_broker.bootstrap, folder).config), "UTC", folder / "log")
    started.sql("SET spark.databricks.delta.retentionDurationCheck.enabled = false")
    # VACUUM lists a table's files in so many tasks: 10,000 if nothing else is said, for a dozen files.
    started.sql("SET spark.sql.sources.parallelPartitionDiscovery.parallelism = 2")
    yield started
    started.stop()


@pytest.fixture
def world(shared_broker: BrokerProcess, tmp_path: Path) -> World:
    made = World(shared_broker.bootstrap, tmp_path)
    made.write_config(penstock_etl_clock="wall")
    return made


class Owner:
    """Loads nights, and does with the table what its owner may."""

    def __init__(self, world: World, spark: Any) -> None:
        self.world, self.spark = world, spark

    def load(self, night: str, *, reload: bool = False, deleted: Deleted = None) -> Outcome:
        """Load a night."""
        one = Loading(job.load(self.world.config), clock="wall", incomplete="fail", wait_seconds=0, spark=self.spark)
        try:
            return one.night(parse_night(night), reload=reload, deleted=deleted)
        finally:
            one.close()

    def send_and_load(self, *nights: str) -> None:
        """Nights of ten events each, the first of them with a record more that is no row."""
        for night in nights:
            self.world.events(night, 10)
            if night == NIGHTS[0]:
                self.world.send(night, [b"bad"])
            self.world.arrive()
            self.load(night)

    def run(self, statement: str) -> None:
        """Run a statement on the table `{}`."""
        self.spark.sql(statement.format(f"delta.`{self.world.table}`"))

    def overwrite_without(self, *ids: str) -> None:
        """Write the whole table again, without some rows."""
        kept = self.spark.read.format("delta").load(self.world.table).where(f"id NOT IN ({', '.join(map(repr, ids))})")
        kept.write.format("delta").mode("overwrite").save(self.world.table)

    def forget_log(self) -> None:
        """Let Delta remove all of its log's files but what it needs, and all data files that are in no version."""
        self.run("ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")  # so that the last commit isn't ours
        folder = Path(self.world.table) / "_delta_log"
        for commit in sorted(folder.glob("*.json"))[:-1]:
            os.utime(commit, (1, 1))
        log = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self.world.table)
        none = self.spark._jvm.scala.Option.empty()
        log.checkpoint()
        log.doLogCleanup(log.update(False, none, none), none)
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        self.run("VACUUM {} RETAIN 0 HOURS")
        assert len(list(folder.glob("*.json"))) <= 3

    def audit(self, code: int) -> dict[str, Any]:
        """The table's line of the audit, which has to end with this code."""
        done = self.world.audit("--json")
        assert done.returncode == code, done.stdout + done.stderr
        hop: dict[str, Any] = json.loads(done.stdout)["hops"][-1]
        return hop

    def ids(self) -> set[str]:
        """The ids of the rows that are there."""
        return set(deltalake.DeltaTable(self.world.table).to_pyarrow_table()["id"].to_pylist())


@pytest.fixture
def owner(world: World, spark: Any) -> Owner:
    return Owner(world, spark)


def shown(hop: dict[str, Any]) -> list[tuple[str, str, int, int, dict[str, int]]]:
    """The changes that the audit names."""
    return [(one["operation"], one["condition"], one["removed"], one["updated"], one["nights"]) for one in hop["changes"]]


def test_rows_that_an_owner_deleted_are_named_and_explain_no_more_than_themselves(owner: Owner) -> None:
    """For good: also when Delta has removed what it knew of them."""
    owner.send_and_load(*NIGHTS[:2])
    assert owner.audit(0)["changes"] == []
    owner.run("DELETE FROM {} WHERE id = '2013-01-01/3'")
    owner.run("UPDATE {} SET note = 'seen' WHERE seconds < 2")
    owner.run("MERGE INTO {} t USING (SELECT '2013-01-02/5' AS gone) s ON t.id = s.gone WHEN MATCHED THEN DELETE")
    owner.run("OPTIMIZE {}")
    hop = owner.audit(0)
    assert (hop["records"], hop["expected"], hop["trouble"]) == (18, 18, "")
    assert shown(hop) == [
        ("DELETE", "(id = 2013-01-01/3)", 1, 0, {NIGHTS[0]: 1}),
        ("UPDATE", "(seconds < 2)", 0, 4, {}),
        ("MERGE", "(id = gone)", 1, 0, {NIGHTS[1]: 1}),
    ]
    said = " ".join(owner.world.audit().stdout.split())
    assert "Complete: every record" in said
    assert "Others changed the table table: DELETE (id = 2013-01-01/3) (version 2, " in said
    assert "1 rows removed, by night 2013-01-01: -1" in said

    owner.send_and_load(NIGHTS[2])
    owner.forget_log()
    hop = owner.audit(0)
    # The condition may name whom it is about: it is kept for no longer than Delta keeps it.
    assert [(one["operation"], one["condition"], one["removed"]) for one in hop["changes"]] == [
        ("DELETE", "", 1), ("UPDATE", "", 0), ("MERGE", "", 1)
    ]  # fmt: skip
    owner.overwrite_without("2013-01-01/4")
    trouble = owner.audit(1)["trouble"]
    assert trouble.startswith("rows of night 2013-01-01, partition 0: 4 for 5; version ") and "are gone" not in trouble


def test_files_that_vacuum_has_removed_leave_their_number(owner: Owner) -> None:
    owner.send_and_load(*NIGHTS[:2])
    owner.run("DELETE FROM {} WHERE seconds IN (3, 4)")
    owner.run("VACUUM {} RETAIN 0 HOURS")
    hop = owner.audit(0)
    assert [(one["operation"], one["removed"], one["untold"]) for one in hop["changes"]] == [("DELETE", 4, 4)]
    owner.overwrite_without("2013-01-01/0")
    assert "rows of night 2013-01-01, partition 0" in owner.audit(1)["trouble"]


def test_a_table_that_was_set_back_or_overwritten_needs_a_word(owner: Owner) -> None:
    """No statement names those rows. What a person accepts is exact: a row less is a loss again."""
    owner.send_and_load(*NIGHTS)
    owner.run("RESTORE TABLE {} TO VERSION AS OF 1")
    trouble = owner.audit(1)["trouble"]
    assert "rows of night 2013-01-03, partition 0: 0 for 5" in trouble
    assert "version 3 (RESTORE) took rows of 2013-01-03 along" in trouble
    said = " ".join(owner.world.audit().stdout.split())
    assert f"`penstock audit accept --config {owner.world.config} --because TEXT`" in said and "Complete" not in said
    owner.run("RESTORE TABLE {} TO VERSION AS OF 2")
    assert owner.audit(0)["records"] == 30
    assert owner.world.audit("accept", "--because", "nothing").returncode == 1

    owner.overwrite_without("2013-01-02/1", "2013-01-02/3")
    assert "rows of night 2013-01-02, partition 1: 3 for 5" in owner.audit(1)["trouble"]
    done = owner.world.audit("accept", "--because", "they are gone for good")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert "table table, rows of night 2013-01-02, partition 1: -2 records" in done.stdout
    hop = owner.audit(0)
    assert {place: one["difference"] for place, one in hop["accepted"].items()} == {"rows of night 2013-01-02, partition 1": -2}
    said = " ".join(owner.world.audit().stdout.split())
    assert "rows of night 2013-01-02, partition 1, -2 records, on 20" in said and "because they are gone for good" in said
    owner.overwrite_without("2013-01-02/5")
    trouble = owner.audit(1)["trouble"]
    assert trouble.startswith("rows of night 2013-01-02, partition 1: 2 for 5 (-2 was accepted)")
    # Loaded again the night is whole, so that what was accepted isn't so any more, and could hide a later loss.
    owner.load(NIGHTS[1], reload=True)
    assert owner.audit(1)["trouble"] == "rows of night 2013-01-02, partition 1: 5 for 5 (-2 was accepted)"
    assert owner.world.audit("accept", "--because", "it is whole again").returncode == 0
    assert owner.audit(0)["accepted"] == {}


def test_a_reload_over_a_deletion_is_a_choice(owner: Owner) -> None:
    owner.send_and_load(*NIGHTS[:2])
    every = owner.ids()
    gone = {"2013-01-01/3", "2013-01-01/8"}
    owner.run(f"DELETE FROM {{}} WHERE id IN {tuple(gone)}")
    owner.load(NIGHTS[1], reload=True)  # of which nobody has deleted anything
    with pytest.raises(Refused, match=r"version 2 \(DELETE\) took 2 rows\n.* --night 2013-01-01 --reload --deleted keep`"):
        owner.load(NIGHTS[0], reload=True)
    assert owner.ids() == every - gone
    done = owner.load(NIGHTS[0], reload=True, deleted="keep").commit
    assert (done.records, done.rows, done.rejects) == (11, 8, 1)
    assert owner.ids() == every - gone
    hop = owner.audit(0)
    assert (hop["records"], hop["expected"], hop["changes"]) == (18, 18, [])
    with pytest.raises(Refused, match="2 rows that an earlier reload left out"):
        owner.load(NIGHTS[0], reload=True)
    owner.run("DELETE FROM {} WHERE id = '2013-01-01/5'")
    assert owner.load(NIGHTS[0], reload=True, deleted="keep").commit.rows == 7
    owner.overwrite_without("2013-01-01/1")
    with pytest.raises(Refused, match="that no statement in the table's log names"):
        owner.load(NIGHTS[0], reload=True, deleted="keep")
    assert owner.load(NIGHTS[0], reload=True, deleted="restore").commit.rows == 10
    assert owner.ids() == every and owner.audit(0)["records"] == 20


def test_a_folder_of_rejects_is_one_tables(owner: Owner, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    """Another pipeline's file that names it is refused before anything is written."""
    owner.send_and_load(NIGHTS[0])
    folder = tmp_path / "another"
    folder.mkdir()
    another = Owner(World(shared_broker.bootstrap, folder), owner.spark)
    another.world.write_config(penstock_etl_clock="wall", penstock_etl_rejects=f"{owner.world.table}-rejects")
    with pytest.raises(
        Refused, match=r"has the rejects of the table `file:.*\nhint: .*`penstock.etl.rejects=.*/another/table-"
    ):
        another.send_and_load(NIGHTS[0])
    assert table.committed(another.world.storage) == [] and another.world.storage.names(plan.FOLDER) == []
    assert owner.audit(0)["dropped"] == 1
    another.world.write_config(penstock_etl_clock="wall")
    another.load(NIGHTS[0])
    assert another.audit(0)["dropped"] == 1


def test_a_folder_of_rejects_that_is_gone_is_noticed(owner: Owner) -> None:
    owner.send_and_load(*NIGHTS[:2])
    rejects = Path(f"{owner.world.table}-rejects")
    rejects.rename(owner.world.folder / "elsewhere")
    assert owner.audit(1)["trouble"] == f"rejects of night 2013-01-01: 0 for 1; no table of rejects is at `{rejects}`"
    owner.send_and_load(NIGHTS[2])
    assert owner.audit(1)["trouble"].startswith("rejects of night 2013-01-01: 0 for 1")
    owner.load(NIGHTS[0], reload=True)
    assert owner.audit(0)["dropped"] == 1
    # A reject that is gone alone is missing, too.
    owner.spark.sql(f"DELETE FROM delta.`{rejects}`")
    assert owner.audit(1)["trouble"] == "rejects of night 2013-01-01: 0 for 1"


def test_a_run_number_that_delta_forgets_is_known_and_given_once(owner: Owner, spark: Any) -> None:
    owner.send_and_load(NIGHTS[0])
    owner.run("ALTER TABLE {} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 0 seconds')")
    kept = ", ".join(f"'delta.{name}RetentionDuration' = 'interval 0 seconds'" for name in ("log", "deletedFile"))
    owner.run(f"ALTER TABLE {{}} SET TBLPROPERTIES ({kept})")
    owner.forget_log()
    assert table.status(owner.world.storage).run == 1
    owner.send_and_load(NIGHTS[1])
    owner.forget_log()
    commits = table.committed(owner.world.storage)
    assert [commit.run for commit in commits] == [1, 2] and len(owner.ids()) == 20
    ranges = {tp: (part.end, part.end) for tp, part in commits[-1].partitions.items()}
    made = [plan.Plan(night, 3, ranges) for night in ("2013-01-03", "2013-01-04")]
    one, two = (delta.Transaction(spark, owner.world.storage, each, parse("id STRING", "id")) for each in made)
    one.commit(NightCommit("2013-01-03", 3, {}))
    owner.forget_log()
    with pytest.raises(Refused, match="another process"):
        two.commit(NightCommit("2013-01-04", 3, {}))
    with pytest.raises(Refused, match="overtaken"):
        delta.Transaction(spark, owner.world.storage, made[1], parse("id STRING", "id"))
    assert table.status(owner.world.storage).run == 3
    owner.load("2013-01-04")
    assert [commit.run for commit in table.committed(owner.world.storage)] == [1, 2, 3, 4]
