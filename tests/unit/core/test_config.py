"""Property files and tables: Java's syntax, Kafka's names, and a sentence for whatever is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import (
    REQUIRED,
    Config,
    ConfigError,
    Property,
    Schema,
    parse_bool,
    parse_choice,
    parse_float,
    parse_int,
    parse_list,
    parse_properties,
    parse_servers,
    parse_str,
)

SCHEMA = Schema(
    "test",
    [
        Property("log.segment.bytes", parse_int(14, 1 << 40), 1 << 30, "Bytes."),
        Property("source.*.bootstrap.servers", parse_str, None, "A source."),
        Property("bootstrap.servers", parse_str, REQUIRED, "The cluster."),
        Property("auto.create", parse_bool, True, "A switch."),
        Property("share", parse_float, 0.5, "A share."),
        Property("topics", parse_list, [], "Names."),
        Property("codec", parse_choice("lz4", "zstd"), "lz4", "A codec."),
    ],
)


def load(*overrides: str) -> Config:
    return SCHEMA.load(None, ["bootstrap.servers=a:1", *overrides])


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as info:
        load(*overrides)
    assert "\n" not in str(info.value)
    return str(info.value)


def test_defaults_and_what_was_given() -> None:
    config = load("codec=zstd")
    assert (config["log.segment.bytes"], config["auto.create"], config["codec"]) == (1 << 30, True, "zstd")
    assert config.given == {"bootstrap.servers", "codec"}
    assert "source.*.bootstrap.servers" not in config
    assert dict(config)["share"] == 0.5 and len(config) == 6


def test_an_override_wins_over_the_file_and_the_last_line_over_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text("bootstrap.servers=a:1\ncodec=lz4\nbootstrap.servers=b:2\ntopics = x , y,,\n")
    config = SCHEMA.load(path, ["codec=zstd"])
    assert (config["bootstrap.servers"], config["codec"], config["topics"]) == ("b:2", "zstd", ["x", "y"])


def test_a_pattern_takes_one_word() -> None:
    config = load("source.ewr.bootstrap.servers=a:1", "source.jfk.bootstrap.servers=b:2")
    assert config["source.ewr.bootstrap.servers"] == "a:1" and config["source.jfk.bootstrap.servers"] == "b:2"
    for name in ("source..bootstrap.servers", "source.a.b.bootstrap.servers", "source.*.bootstrap.servers"):
        assert f"unknown test property `{name}`" in refused(f"{name}=a:1")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("log.segment.byte=1", "unknown test property `log.segment.byte`; did you mean `log.segment.bytes`?"),
        ("source.a.bootstrap.server=x:1", "did you mean `source.a.bootstrap.servers`?"),
        ("source.HAM.bootstap.servers=x:1", "did you mean `source.HAM.bootstrap.servers`?"),
        ("zzzz=1", "unknown test property `zzzz`"),
        ("=1", "unknown test property ``"),
        ("codec", "`codec` is not of the form key=value"),
        ("log.segment.bytes=13", "`log.segment.bytes=13` is less than 14"),
        ("log.segment.bytes=1099511627777", "is more than 1099511627776"),
        ("log.segment.bytes=1_000", "is not a whole number"),
        ("log.segment.bytes=٣٣٣", "is not a whole number"),
        ("log.segment.bytes=" + "9" * 5000, "is not a whole number"),
        ("log.segment.bytes=", "is not a whole number"),
        ("auto.create=yes", "is not `true` or `false`"),
        ("share=nan", "is not a finite number"),
        ("share=much", "is not a number"),
        ("codec=gzip", "`codec=gzip` is not one of lz4, zstd"),
    ],
)
def test_what_is_wrong_is_named(override: str, said: str) -> None:
    assert said in refused(override)


def test_a_required_key_is_asked_for_with_its_words() -> None:
    with pytest.raises(ConfigError, match=r"the test configuration lacks `bootstrap.servers`: The cluster\."):
        SCHEMA.load(None)


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ValueError, match="`a` is declared twice"):
        Schema("test", [Property("a", parse_str, None, ""), Property("a", parse_str, None, "")])


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", "folder"])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "a.properties"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot read `.*a.properties`: "):
        SCHEMA.load(path)


def test_a_key_that_stands_twice_is_told_to_who_asks() -> None:
    twice: list[str] = []
    assert parse_properties("a=1\n# a=7\nb=2\n\\u0061=3\n", "f", twice) == {"a": "3", "b": "2"}
    assert twice == ["f, line 4: `a` stands in line 1 already: leave one of them"]


@pytest.mark.parametrize("text", ["h:1", "h:65535", "[::1]:9092", "10.0.0.1:9092", "a-b_c.d:1"])
def test_addresses(text: str) -> None:
    assert parse_servers(text) == text and parse_servers(f" {text} , x:2,") == f"{text},x:2"


@pytest.mark.parametrize("text", ["h", "h:", ":1", "h:x", "http://h:1", "h:0", "h:65536", "h:9092/x", "ä:1", "h:\uff11"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        parse_servers(text)
    with pytest.raises(ValueError, match=f"names `{re.escape(text)}`, which "):
        parse_servers(f"x:1,{text}")


def test_the_syntax_is_that_of_java_properties() -> None:
    content = (
        "# a comment\n ! another\n\n"
        "a=1\r\n b : 2 \rc = x=y:z\n"
        "d = one, \\\n    two\n"
        "e=C:\\\\dir\\\\\nf=tab\\there \\u00e9 \\ud83d\\ude00\n"
        "g\\=h=escaped key\nempty=\n"
        "page=a\x0cb\u2028c\n"
    )
    assert parse_properties(content) == {
        "a": "1",
        "b": "2",
        "c": "x=y:z",
        "d": "one, two",
        "e": "C:\\dir\\",
        "f": "tab\there é 😀",
        "g=h": "escaped key",
        "empty": "",
        "page": "a\x0cb\u2028c",
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a=1\nnonsense\n", "f, line 2: it is not of the form key=value"),
        ("=1", "f, line 1: it is not of the form key=value"),
        ("a=1\n\nb=\\\n", "f, line 3: the file ends inside a continued line"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(content: str, said: str) -> None:
    with pytest.raises(ConfigError) as info:
        parse_properties(content, "f")
    assert str(info.value) == said


@given(st.text())
def test_any_text_is_read_or_refused_in_words_and_can_be_written_again(content: str) -> None:
    try:
        found = parse_properties(content)
    except ConfigError:
        return
    for key, value in found.items():
        assert key
        (key + value).encode()


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def escape(text: str) -> str:
    """Every character that isn't a plain letter or digit as Java's `store` may write it."""
    units = text.encode("utf-16-be")
    pairs = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 128 and chr(unit).isalnum() else f"\\u{unit:04x}" for unit in pairs)


@given(st.dictionaries(WORDS.filter(bool), WORDS))
def test_what_java_stores_is_read_back(texts: dict[str, str]) -> None:
    content = "".join(f"{escape(key)}={escape(value)}\n" for key, value in texts.items())
    assert parse_properties(content) == texts


@given(st.dictionaries(st.sampled_from(sorted(SCHEMA.properties)), st.text(max_size=30)), st.text(max_size=30))
def test_any_values_make_a_config_or_one_sentence(texts: dict[str, str], name: str) -> None:
    try:
        config = SCHEMA.parse({**texts, name: "1"})
    except ConfigError:
        return
    assert 14 <= config["log.segment.bytes"] <= 1 << 40
    assert config["codec"] in ("lz4", "zstd")


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**9))
def test_bounds_are_included(least: int, span: int) -> None:
    parse = parse_int(least, least + span)
    assert (parse(str(least)), parse(str(least + span))) == (least, least + span)
    for outside in (least - 1, least + span + 1):
        with pytest.raises(ValueError, match="less than" if outside < least else "more than"):
            parse(str(outside))
