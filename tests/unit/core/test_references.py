"""References in property files, and that what they stand for, like any secret, is shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import ConfigError, Property, Schema, parse_int, parse_str
from penstock.pipeline import job
from penstock.pipeline.commands.check import findings

SCHEMA = Schema(
    "test",
    [
        Property("bytes", parse_int(1), 1, "A number."),
        Property("name", parse_str, "", "A text."),
        Property("any.**", parse_str, None, "Anything."),
    ],
)
HIDDEN = "hunter2"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "a.properties"
    made.write_text(f"key.of = {HIDDEN}\nn=7\n")
    (tmp_path / "whole").write_text(f"{HIDDEN}\n")
    return made


def test_each_kind_of_reference(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_TEST", "there")
    config = SCHEMA.parse({
        "bytes": f"${{file:{file}:n}}",
        "name": f"${{env:OF_THE_TEST}}-${{directory:{file.parent}:whole}}",
    })  # fmt: skip
    assert (config["bytes"], config["name"]) == (7, f"there-{HIDDEN}")


@pytest.mark.parametrize("text", ["${topic}", "${source}.${topic}", "${spark:a:b}", "$${x", "${file:/a}"])
def test_what_is_no_reference_stays(text: str) -> None:
    assert SCHEMA.parse({"name": text})["name"] == text


def test_a_path_that_is_not_absolute_is_a_credential(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(file.parent))
    assert SCHEMA.parse({"name": "${file:a.properties:key.of}"})["name"] == HIDDEN
    assert SCHEMA.parse({"name": "${directory:.:whole}"})["name"] == HIDDEN


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("${file:/nonexistent:a}", "cannot read `/nonexistent`: No such file or directory"),
        ("${file:FILE:b}", "has no `b`"),
        ("${directory:FOLDER:../whole}", "`../whole` is no name of a file"),
        ("${directory:FOLDER:none}", "No such file or directory"),
        ("${env:SURELY_NOT_THERE}", "the environment has no `SURELY_NOT_THERE`"),
    ],
)
def test_one_that_stands_for_nothing_is_said_with_its_property(file: Path, reference: str, said: str) -> None:
    reference = reference.replace("FILE", str(file)).replace("FOLDER", str(file.parent))
    with pytest.raises(ConfigError) as refused:
        SCHEMA.parse({"name": reference})
    assert str(refused.value).startswith(f"`name`: `{reference}` stands for nothing: ")
    assert said in str(refused.value)
    config = SCHEMA.parse({"any.secret.key": reference})  # asked for by whoever needs it alone
    with pytest.raises(ConfigError, match=r"`any\.secret\.key`: "):
        config.secrets()


def test_a_value_in_the_wrong_place_is_not_repeated(file: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        SCHEMA.parse({"bytes": f"${{file:{file}:key.of}}"})
    assert str(refused.value) == f"`bytes=${{file:{file}:key.of}}` stands for a value that this property doesn't take"


@pytest.mark.parametrize("name", ["any.fs.s3a.secret.key", "any.fs.s3a.access.key", "any.ssl.keyPassword", "any.session.token"])
def test_a_secret_is_shown_by_its_own_method_alone(name: str) -> None:
    config = SCHEMA.parse({name: HIDDEN})
    assert HIDDEN not in f"{config[name]} {config[name]!r} {dict(config)} {[config[name]]}"
    assert config.secrets() == {name: HIDDEN}


def test_a_secret_is_refused_on_the_command_line(file: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        SCHEMA.load(overrides=[f"any.secret.key={HIDDEN}"])
    assert HIDDEN not in str(refused.value)
    assert "${file:/path:key}" in str(refused.value)
    assert SCHEMA.load(overrides=[f"any.secret.key=${{file:{file}:key.of}}"]).secrets() == {"any.secret.key": HIDDEN}


def test_a_line_without_a_value_sign_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"a=1\n{HIDDEN}\n")
    with pytest.raises(ConfigError) as refused:
        SCHEMA.load(tmp_path / "a")
    assert HIDDEN not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        SCHEMA.parse({"name": f"${{file:{tmp_path / 'a'}:a}}"})
    assert HIDDEN not in str(refused.value)


def test_the_check_of_a_pipeline_asks_for_its_secrets() -> None:
    name = "spark.hadoop.fs.s3a.secret.key"
    said = findings({name: "${file:/nonexistent:a}"}, ["etl"])
    assert [one for one in said if one.startswith(f"`{name}`: ")] != []
    assert [one for one in findings({name: "${file:/nonexistent:a}"}, ["mirror"]) if name in one] == []


@pytest.mark.parametrize("schema", [job.SCHEMA], ids=["pipeline"])
def test_no_property_that_is_declared_is_taken_for_a_secret(schema: Schema) -> None:
    given = {name: "x" for name, prop in schema.properties.items() if "*" not in name and prop.parse is parse_str}
    assert schema.parse(given).secrets() == {}
