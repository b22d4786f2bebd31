"""The pipeline's file: each part asks for its own keys, and names all that it lacks at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import root
from penstock.config import ConfigError, Schema
from penstock.groupnames import DEDUPE_GROUPS, MIRROR_GROUPS
from penstock.pipeline import job
from penstock.pipeline.clients import properties
from penstock.pipeline.etl import columntypes, valuerules
from support.stages import write_properties

SOURCE = {"source.EWR.bootstrap.servers": "ewr:9092"}
OWN: dict[str, dict[str, str]] = {
    "mirror": {"bootstrap.servers": "target:9092", "topics": "flights", **SOURCE},
    "dedupe": {"bootstrap.servers": "target:9092", "topics": "flights", "penstock.dedupe.data": "ids"},
    "etl": {
        "bootstrap.servers": "target:9092",
        "topics": "flights",
        **SOURCE,
        "penstock.etl.table": "table",
        "penstock.etl.schema": "id STRING",
        "penstock.etl.event.day": "date(timestamp)",
    },
    "audit": {"bootstrap.servers": "target:9092", "topics": "flights", **SOURCE, "penstock.etl.table": "table"},
}


@pytest.mark.parametrize("part", OWN)
def test_a_part_needs_its_own_keys_alone(tmp_path: Path, part: str) -> None:
    config = job.load(write_properties(tmp_path / "p.properties", OWN[part]), (), part)
    assert config["bootstrap.servers"] == "target:9092"


@pytest.mark.parametrize("part", OWN)
def test_all_that_is_missing_is_said_at_once(tmp_path: Path, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        job.load(write_properties(tmp_path / "p.properties", {}), (), part)
    named = {name.replace("EWR", "*") for name in OWN[part]}
    assert {name for name in job.SCHEMA.properties if f"`{name}` (" in str(refused.value)} >= named


def test_dedupe_needs_no_list_of_topics_when_it_is_told_its_input(tmp_path: Path) -> None:
    texts = {name: text for name, text in OWN["dedupe"].items() if name != "topics"}
    path = write_properties(tmp_path / "p.properties", texts)
    with pytest.raises(ConfigError, match=r"`penstock.dedupe.input.topic` \(.*\) or `topics` \("):
        job.load(path, (), "dedupe")
    assert job.input_topic(job.load(path, ["penstock.dedupe.input.topic=flights"], "dedupe")) == "flights"


def test_the_whole_pipeline_needs_what_its_parts_need(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the pipeline needs more than") as refused:
        job.load(write_properties(tmp_path / "p.properties", OWN["mirror"]))
    assert "`penstock.dedupe.data`" in str(refused.value) and "`penstock.etl.table`" in str(refused.value)


def test_names_in_identities_can_not_run_into_each_other() -> None:
    names = ["a", "b", "c", "a.b", "b.c", "a%2Eb", "b%2Ec", "a%252Eb", "a%b", "%", "."]
    seen = {job.mirror_identity(mirror, source) for mirror in names for source in names}
    assert len(seen) == len(names) ** 2
    assert job.mirror_identity("mirror", "EWR") == "mirror.EWR"
    assert job.mirror_identity("a%b", "EWR") == "a%b.EWR"
    assert job.mirror_identity("a.b", "EWR") == "a%2Eb.EWR"


@pytest.mark.parametrize(
    ("properties", "pairs"),
    [
        ({"topics": "a"}, {"a": "a.deduped"}),
        ({"topics": "a,b"}, {"a": "a.deduped", "b": "b.deduped"}),
        ({"topics": "a,b", "penstock.dedupe.input.topic": "b"}, {"b": "b.deduped"}),
        ({"topics": "a", "penstock.dedupe.output.topic": "once"}, {"a": "once"}),
        ({"topics": "a,b", "penstock.dedupe.output.topic": "once"}, "names one topic and dedupe reads 2"),
        ({"topics": "a,a.deduped"}, "would read `a.deduped` and write it"),
        ({"topics": "a", "penstock.dedupe.output.topic": "a"}, "would read `a` and write it"),
    ],
)
def test_what_dedupe_reads_and_writes(properties: dict[str, str], pairs: dict[str, str] | str) -> None:
    config = job.SCHEMA.parse(properties)
    if isinstance(pairs, dict):
        assert job.deduped(config) == pairs
    else:
        with pytest.raises(ConfigError, match=pairs):
            job.deduped(config)


def test_of_several_topics_the_one_that_is_loaded_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"say which with `penstock\.etl\.topic`, such as `penstock\.etl\.topic=a\.deduped`"):
        job.input_topic(job.SCHEMA.parse({"topics": "a,b"}))
    config = job.SCHEMA.parse({"topics": "a,b", "penstock.etl.topic": "b.deduped"})
    assert (job.input_topic(config), job.output_topic(config)) == ("b", "b.deduped")


def test_a_topic_that_dedupe_does_not_write_is_not_loaded_after_it() -> None:
    """Of one topic, too: completeness would be asked of that one, and another one would be loaded."""
    for topics, loaded in (("clicks", "flights.deduped"), ("a,b", "c.deduped")):
        config = job.SCHEMA.parse({"topics": topics, "penstock.etl.topic": loaded})
        for ask in (job.input_topic, job.output_topic):
            with pytest.raises(ConfigError, match=f"`penstock.etl.topic={loaded}` is no topic that dedupe writes"):
                ask(config)
    own = job.SCHEMA.parse({"topics": "a", "penstock.dedupe.output.topic": "clean", "penstock.etl.topic": "clean"})
    assert (job.input_topic(own), job.output_topic(own)) == ("a", "clean")


@pytest.mark.parametrize("names", [("mirror", "lax"), ("a.b", "c"), ("a", "b.c%2E"), ("%25", "%")])
def test_a_group_says_whose_positions_it_has(names: tuple[str, str]) -> None:
    assert job.mirror_and_source(MIRROR_GROUPS + job.mirror_identity(*names)) == names
    assert job.mirror_and_source(DEDUPE_GROUPS + "dedupe") is None


def test_the_page_of_properties_is_the_table() -> None:
    page = Path(__file__).parents[3] / "pipeline" / "PROPERTIES.md"
    done = CliRunner().invoke(root, ["config", "--list", "--markdown"])
    assert done.exit_code == 0
    assert done.output == page.read_text(), "`penstock config --list --markdown > pipeline/PROPERTIES.md` writes it"
    assert sum(line.startswith("| `") for line in done.output.splitlines()) == len(job.SCHEMA.properties)


@pytest.mark.parametrize("part", ["producer", "consumer"])
def test_the_page_of_a_clients_properties_is_their_table(part: str) -> None:
    page = Path(__file__).parents[3] / "pipeline" / "clients" / f"{part.upper()}.md"
    done = CliRunner().invoke(root, ["config", "--client", part, "--markdown"])
    assert done.exit_code == 0
    assert done.output == page.read_text(), f"`penstock config --client {part} --markdown` writes pipeline/clients/{page.name}"
    if part == "producer":
        assert "| `linger.ms` | 5 | `queue.time`, `queue.buffering.max.ms` |" in done.output


def test_properties_that_are_not_kafkas_say_whose_they_are() -> None:
    assert set(properties.NOT_KAFKAS) <= {*properties.PRODUCER.properties, *properties.CONSUMER.properties}
    lines = CliRunner().invoke(root, ["config", "--client", "producer"]).output.splitlines()
    assert "record.id (default none; of Penstock)" in lines


@pytest.mark.parametrize("schema", [properties.PRODUCER, properties.CONSUMER], ids=lambda schema: schema.part)
def test_a_clients_properties_are_all_shown(schema: Schema) -> None:
    asked = json.loads(CliRunner().invoke(root, ["config", "--client", schema.part, "--json"]).output)
    assert [row["name"] for row in asked] == list(schema.properties)
    lines = CliRunner().invoke(root, ["config", "--client", schema.part]).output.splitlines()
    assert [line.split(" ")[0] for line in lines[::2]] == list(schema.properties)
    if schema is properties.PRODUCER:
        assert "acks (default all; also request.required.acks)" in lines


def test_the_page_of_types_is_made_from_the_rules() -> None:
    page = Path(__file__).parents[3] / "pipeline" / "TYPES.md"
    done = CliRunner().invoke(root, ["config", "--types", "--markdown"])
    assert done.output == page.read_text(), "`penstock config --types --markdown > pipeline/TYPES.md` writes it"
    rules = json.loads(CliRunner().invoke(root, ["config", "--types", "--json"]).output)
    assert rules["BOOLEAN"] == "`true` or `false`"
    listed = {name.partition("(")[0].partition("<")[0] for names in valuerules.SHOWN for name in names}
    assert listed == {*columntypes.SIMPLE, *columntypes.DECIMALS, "ARRAY", "MAP", "STRUCT"}
    assert CliRunner().invoke(root, ["config", "--types", "etl"]).exit_code == 2


RAW = {"etl.raw.topic": "clicks", "etl.raw.table": "raw", "etl.raw.schema": "id STRING", "etl.raw.event.day": "date(timestamp)"}


def test_a_file_may_describe_several_tables(tmp_path: Path) -> None:
    texts = {**OWN["etl"], **RAW, "etl.raw.after": "mirror"}
    config = job.load(write_properties(tmp_path / "p.properties", texts), (), "etl")
    assert job.table_names(config) == ["", "raw"]
    job.check_tables(config)
    raw, plain = job.one_table(config, "raw"), job.one_table(config, "")
    assert (job.input_topic(raw), job.output_topic(raw), raw["penstock.etl.table"]) == ("clicks", "clicks", "raw")
    assert (job.input_topic(plain), job.output_topic(plain)) == ("flights", "flights.deduped")
    assert plain["penstock.etl.table"] == "table"


def test_named_tables_need_no_plain_one_and_after_the_mirror_nothing_of_dedupe(tmp_path: Path) -> None:
    path = write_properties(tmp_path / "p.properties", {"bootstrap.servers": "target:9092", **SOURCE, **RAW})
    with pytest.raises(ConfigError, match="`topics`"):
        job.load(path, (), "etl")
    config = job.load(path, ["etl.raw.after=mirror"], "etl")
    assert job.table_names(config) == ["raw"]
    with pytest.raises(ConfigError, match=r"`etl\.raw\.schema` \(Its columns\)"):
        job.load(path, ["etl.raw.after=mirror", "etl.raw.schema="], "etl")
    with pytest.raises(ConfigError, match=r"did you mean `etl\.raw\.schema`\?"):
        job.load(path, ["etl.raw.shcema=id STRING"], "etl")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "`etl.raw.topic=clicks` is no topic that dedupe writes (flights.deduped)"),
        ({"etl.raw.after": "mirror", "etl.raw.table": "table/"}, "`etl.raw.table=table/` is the folder of `penstock.etl"),
        ({"etl.raw.after": "mirror", "etl.raw.rejects": "./table-rejects"}, "folder of `penstock.etl.rejects`, too"),
        ({"etl.raw.after": "mirror", "etl.raw.table": Path("table").absolute().as_uri()}, "folder of `penstock.etl"),
        (
            {"etl.raw.after": "mirror", "etl.raw.table": "table/raw"},
            "`etl.raw.table=table/raw` lies inside `penstock.etl.table=ta",
        ),
        ({"etl.raw.after": "mirror", "penstock.etl.table": "raw/../raw/x/y"}, "x/y` lies inside `etl.raw.table=raw`"),
        ({"etl.raw.after": "mirror", "penstock.etl.rejects": "raw/_rejects"}, "raw/_rejects` lies inside `etl.raw.table=raw`"),
        (
            {"penstock.etl.rejects": "table/rejects", "etl.raw.after": "mirror"},
            "`penstock.etl.rejects=table/rejects` lies inside",
        ),
        ({"penstock.dedupe.data": "table/ids", "etl.raw.after": "mirror"}, "`penstock.dedupe.data=table/ids` lies inside"),
        ({"etl.raw.after": "mirror", "etl.raw.event.day": "dya"}, "`etl.raw.event.day=dya` names `dya`"),
        ({"etl.raw.after": "mirror", "etl.raw.schema": "id STRNG"}, "`etl.raw.schema`: `STRNG` is no type; did you mean `STR"),
        ({"etl.raw.after": "mirror", "etl.raw.schema": "offset INT"}, "`etl.raw.schema` declares `offset`, which"),
        ({"etl.raw.topic": "flights"}, "did you mean `flights.deduped`?"),
        (
            {"etl.raw.after": "mirror", "topics": "flights,b", "penstock.etl.topic": "flights"},
            "`penstock.etl.topic=flights` is no topic that dedupe writes (flights.deduped, b.deduped); "
            "did you mean `flights.ded",
        ),
    ],
)
def test_tables_that_can_not_be_are_found_by_check(tmp_path: Path, change: dict[str, str], words: str) -> None:
    path = write_properties(tmp_path / "p.properties", {**OWN["etl"], **RAW, **change})
    checked = CliRunner().invoke(root, ["check", "--config", str(path), "--for", "etl"])
    assert checked.exit_code == 2 and words in checked.output, checked.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"etl.raw.event.day": "dya"}, "`etl.raw.event.day=dya` names `dya`"),
        ({"etl.raw.schema": "id STRNG"}, "`etl.raw.schema`: `STRNG` is no type; did you mean `STRING`?"),
    ],
)
def test_a_load_names_the_keys_of_its_table(tmp_path: Path, change: dict[str, str], words: str) -> None:
    texts = {**OWN["etl"], **RAW, "etl.raw.after": "mirror", **change}
    path = write_properties(tmp_path / "p.properties", texts)
    refused = CliRunner().invoke(root, ["etl", "--config", str(path), "--night", "2013-01-01", "--table", "raw"])
    assert isinstance(refused.exception, ConfigError) and words in str(refused.exception)


@pytest.mark.parametrize("command", [["check", "--for", "etl"], ["etl", "--night", "2013-01-01"], ["audit"]])
@pytest.mark.parametrize(("key", "value"), [("record.columns", "key"), ("after", "mirror")])
def test_a_plain_key_beside_named_tables_alone_is_refused(tmp_path: Path, command: list[str], key: str, value: str) -> None:
    texts = {"bootstrap.servers": "target:9092", **SOURCE, **RAW, "etl.raw.after": "mirror", f"penstock.etl.{key}": value}
    path = write_properties(tmp_path / "p.properties", texts)
    refused = CliRunner().invoke(root, [*command, "--config", str(path)])
    said = f"{refused.output}{refused.exception}"
    assert refused.exit_code != 0
    assert f"`penstock.etl.{key}` belongs to no table" in said and f"such as `etl.raw.{key}`" in said


@pytest.mark.parametrize(
    "asked", [["--night", "2013-01-01", "--nights", "2013-01-01"], ["--until", "2013-01-01"], ["--follow", "--reload"]]
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, asked: list[str]) -> None:
    path = write_properties(tmp_path / "p.properties", OWN["etl"])
    refused = CliRunner().invoke(root, ["etl", "--config", str(path), *asked])
    assert refused.exit_code == 2 and "Traceback" not in refused.output


def test_an_audit_of_a_table_that_is_not_described_is_refused(tmp_path: Path) -> None:
    path = write_properties(tmp_path / "p.properties", {**OWN["etl"], **RAW, "etl.raw.after": "mirror"})
    refused = CliRunner().invoke(root, ["audit", "--config", str(path), "--table", "row"])
    assert refused.exit_code != 0 and "describes no table `row`" in f"{refused.output}{refused.exception}"


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("s3a://b//x", "s3a://b/x", "is the folder of"),
        ("s3a://b/./x/", "S3A://b/y/../x", "is the folder of"),
        ("hdfs://nn/x", "hdfs://NN:8020/x/", "is the folder of"),
        ("file:///x%20y", "/x y", "is the folder of"),
        ("file:/x", "file:////x", "is the folder of"),
        ("s3a://b/x", "s3a://b/x//y", "lies inside"),
        ("hdfs://nn:8020/x/y", "hdfs://nn/x", "lies inside"),
        ("s3a://b/x", "s3a://c/x", ""),
        ("s3a://b/x", "s3a://b/xy", ""),
        ("hdfs://nn:9000/x", "hdfs://nn/x", ""),
        ("hdfs://b/x", "s3a://b/x", ""),
        ("/x", "hdfs://nn/x", ""),
    ],
)
def test_a_place_is_one_however_it_is_written(one: str, other: str, said: str) -> None:
    named = {f"etl.{name}.{key}": text for name in "ab" for key, text in (("topic", "t"), ("after", "mirror"))}
    config = job.SCHEMA.parse({**named, "topics": "t", "etl.a.table": one, "etl.b.table": other})
    if not said:
        job.check_tables(config)
        return
    with pytest.raises(ConfigError, match=said):
        job.check_tables(config)
