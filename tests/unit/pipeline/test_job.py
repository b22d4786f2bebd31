"""The pipeline's file: each part asks for its own keys, and names all that it lacks at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import root
from penstock.config import ConfigError
from penstock.pipeline import job
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
        "penstock.etl.event.day": "current_date()",
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
    assert (job.input_topic(config), job.output_topic(config), job.etl_topic(config)) == ("b", "b.deduped", "b.deduped")
    other = job.SCHEMA.parse({"topics": "a", "penstock.etl.topic": "raw"})
    assert (job.input_topic(other), job.etl_topic(other)) == ("a", "raw")


def test_the_page_of_properties_is_the_table() -> None:
    page = Path(__file__).parents[3] / "pipeline" / "PROPERTIES.md"
    done = CliRunner().invoke(root, ["config", "--list", "--markdown"])
    assert done.exit_code == 0
    assert done.output == page.read_text(), "`penstock config --list --markdown > pipeline/PROPERTIES.md` writes it"
    assert sum(line.startswith("| `") for line in done.output.splitlines()) == len(job.SCHEMA.properties)
