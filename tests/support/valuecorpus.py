"""Which JSON values a column of each type takes: cases that any reader of events must pass.

A case is a text of JSON, and the value that the column then holds, or why the record is a reject. `test_value_rules.py` sends
them through nights, and reads the tables with readers that aren't ours.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from penstock.pipeline.etl import valuerules


@dataclass(frozen=True)
class Refused:
    """A value that its column doesn't take: what the reason shows of it, unless that is all of it, and the place and type that
    it names, unless they are the column's own."""

    shown: str = ""
    place: str = ""
    type: str = ""

    def reason(self, column: str, kind: str, text: str) -> str:
        """The words of the reject."""
        named = self.type or kind
        name = named.partition("<")[0]
        return f"`{column}{self.place}` is {self.shown or text}, and {name} takes {valuerules.rule_of(named).takes}"


@dataclass(frozen=True)
class Wrong:
    """A value that makes the record no event at all, or one of which more is to be said."""

    words: str


NO = Refused()
JSON = "not one JSON object: "
UTC = datetime.UTC
EMOJI = "\N{GRINNING FACE}"


def at(text: str) -> datetime.datetime:
    """A time that has been told in ISO 8601, with its zone if it has one."""
    return datetime.datetime.fromisoformat(text)


def day(text: str) -> datetime.date:
    """A day that has been told in ISO 8601."""
    return datetime.date.fromisoformat(text)


def _whole(bits: int) -> dict[str, Any]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return {
        "0": 0,
        "-0": 0,
        "7": 7,
        "-7": -7,
        "1.0": 1,
        "-1.00": -1,
        "1e2": 100,
        "1E+2": 100,
        "120e-1": 12,
        "0.5e1": 5,
        "0e999": 0,
        "0.000": 0,
        f"{high}": high,
        f"{low}": low,
        f"{high}.0": high,
        f"{high + 1}": NO,
        f"{low - 1}": NO,
        f"{high + 1}.0": NO,
        f"{1 << bits}": NO,
        "1.5": NO,
        "1e-1": NO,
        "1e19": NO,
        "1e1000000000": NO,
        "-1e99999999999999999999": NO,
        '"7"': NO,
        '""': NO,
        "true": NO,
        "[7]": NO,
        '{"a": 7}': NO,
        "null": None,
    }


def _float(digits: dict[str, Any]) -> dict[str, Any]:
    return {
        "0": 0.0,
        "-0": -0.0,
        "-0.0": -0.0,
        "1": 1.0,
        "-2.5": -2.5,
        "1e3": 1000.0,
        "0.1": 0.1,
        "0.10": 0.1,
        "0e-999": 0.0,
        "1e400": NO,
        "-1e400": NO,
        "1e-400": NO,
        '"1"': NO,
        '"NaN"': NO,
        '"Infinity"': NO,
        "false": NO,
        "[]": NO,
        "{}": NO,
        "null": None,
        "NaN": Wrong(JSON + "NaN at byte {at} is no JSON value"),
        "-Infinity": Wrong(JSON + "-Infinity at byte {at} is no JSON value"),
    } | digits


_TIMES = {
    # text: whether a TIMESTAMP_NTZ takes it, and the value in UTC
    '"2013-01-01T12:34:56"': "2013-01-01T12:34:56",
    '"2013-01-01 12:34:56"': "2013-01-01T12:34:56",
    '"2013-01-01T12:34"': "2013-01-01T12:34:00",
    '"2013-01-01T00:00:00.5"': "2013-01-01T00:00:00.500000",
    '"2013-01-01T00:00:00.000001"': "2013-01-01T00:00:00.000001",
    '"2013-01-01T00:00:00.123456000"': "2013-01-01T00:00:00.123456",
    '"2012-02-29T23:59:59.999999"': "2012-02-29T23:59:59.999999",
    '"0001-01-01T00:00:00"': "0001-01-01T00:00:00",
    '"1582-10-10T00:00:00"': "1582-10-10T00:00:00",
    '"1677-01-01T00:00:00"': "1677-01-01T00:00:00",
    '"1969-12-31T23:59:59.999999"': "1969-12-31T23:59:59.999999",
    '"2262-04-12T00:00:00"': "2262-04-12T00:00:00",
    '"9999-12-31T23:59:59.999999"': "9999-12-31T23:59:59.999999",
}
_ZONED = {
    '"2013-01-01T12:34:56Z"': "2013-01-01T12:34:56",
    '"2013-01-01 12:34:56.25Z"': "2013-01-01T12:34:56.250000",
    '"2013-01-01T12:34Z"': "2013-01-01T12:34:00",
    '"2013-01-01T12:34:56+02:00"': "2013-01-01T10:34:56",
    '"2013-01-01T12:34:56-0530"': "2013-01-01T18:04:56",
    '"2013-01-01T00:00:00+01"': "2012-12-31T23:00:00",
    '"2013-01-01T00:00:00-00:00"': "2013-01-01T00:00:00",
    '"2013-01-01T00:00:00+18:00"': "2012-12-31T06:00:00",
    '"0001-01-01T00:00:00-01:00"': "0001-01-01T01:00:00",
    '"9999-12-31T23:59:59.999999+00:00"': "9999-12-31T23:59:59.999999",
}
_NO_TIMES = [
    '"12:30:00"',
    '"T12:30:00"',
    '"2013"',
    '"2013-01"',
    '"2013-01-01"',
    '"2013-01-01T"',
    '"2013-01-01T12"',
    '"2013-1-1T12:00:00"',
    '"2013-01-01T1:00:00"',
    '"2013-01-01T24:00:00"',
    '"2013-01-01T23:60:00"',
    '"2013-06-30T23:59:60"',
    '"2013-02-29T00:00:00"',
    '"0000-12-31T00:00:00"',
    '"10000-01-01T00:00:00"',
    '"+55000-01-01T00:00:00"',
    '"-2013-01-01T00:00:00"',
    '"2013-01-01t12:00:00"',
    '"2013-01-01T12:00:00z"',
    '"2013-01-01T12:00:00 "',
    '" 2013-01-01T12:00:00"',
    '"2013-01-01  12:00:00"',
    '"2013-01-01T12:00:00."',
    '"2013-01-01T12:00:00,5"',
    '"2013-01-01T12:00:00.1234567"',
    '"2013-01-01T12:00:00.123456001"',
    '"2013-01-01T12:00:00+1"',
    '"2013-01-01T12:00:00+1:00"',
    '"2013-01-01T12:00:00+01:60"',
    '"2013-01-01T12:00:00+18:01"',
    '"2013-01-01T12:00:00+01:00:00"',
    '"2013-01-01T12:00:00 UTC"',
    '"2013-01-01T12:00:00 Europe/Berlin"',
    '"01/02/2013 12:00"',
    '"1356998400"',
    '"now"',
    '"tomorrow"',
    '"epoch"',
    '""',
    "1356998400",
    "1356998400000",
    "1.5",
    "true",
    "[]",
    "{}",
]

SCALARS: dict[str, dict[str, Any]] = {
    "BOOLEAN": {
        "true": True,
        "false": False,
        "null": None,
        '"true"': NO,
        '"false"': NO,
        "0": NO,
        "1": NO,
        '""': NO,
        "[]": NO,
        "{}": NO,
        "True": Wrong(JSON + "True at byte {at} is no JSON value"),
        "truee": Wrong(JSON + "truee at byte {at} is no JSON value"),
    },
    "TINYINT": _whole(8) | {"200": NO, "-129": NO},
    "SMALLINT": _whole(16) | {"40000": NO},
    "INT": _whole(32) | {"99999999999": NO, "01": Wrong(JSON + "01 at byte {at} is no JSON value")},
    "BIGINT": _whole(64) | {"9223372036854775807e0": (1 << 63) - 1, "9007199254740993": 9007199254740993},
    "DECIMAL(9, 2)": {
        "0": Decimal("0.00"),
        "-0": Decimal("0.00"),
        "1": Decimal("1.00"),
        "1.5": Decimal("1.50"),
        "1.50": Decimal("1.50"),
        "1.500": Decimal("1.50"),
        "1e2": Decimal("100.00"),
        "1e-2": Decimal("0.01"),
        "1234567.89": Decimal("1234567.89"),
        "-9999999.99": Decimal("-9999999.99"),
        '"1.5"': Decimal("1.50"),
        '"-1234567.89"': Decimal("-1234567.89"),
        '"1e2"': Decimal("100.00"),
        "null": None,
        "1.239": NO,
        "0.001": NO,
        "1e-3": NO,
        "10000000": NO,
        "12345678.5": NO,
        "1e7": NO,
        "1e10000000": NO,
        "-1e-10000000": NO,
        '"1,50"': NO,
        '"1.234,50"': NO,
        '"1 000"': NO,
        '"+1.5"': NO,
        '" 1.5"': NO,
        '"1.5 "': NO,
        '"1."': NO,
        '".5"': NO,
        '"01"': NO,
        '"1.5EUR"': NO,
        '"NaN"': NO,
        '""': NO,
        '"\\u0031"': NO,
        "true": NO,
        "[1.5]": NO,
        "{}": NO,
        "1.": Wrong(JSON + "1. at byte {at} is no JSON value"),
    },
    "DECIMAL(38, 0)": {
        "9" * 38: Decimal("9" * 38),
        "-" + "9" * 38: Decimal("-" + "9" * 38),
        "1e37": Decimal(10**37),
        "1e38": NO,
        "9" * 39: NO,
        "0.1": NO,
        "12345678901234567890123456789012345678.0": Decimal("12345678901234567890123456789012345678"),
    },
    "DECIMAL(38, 38)": {
        "0." + "9" * 38: Decimal("0." + "9" * 38),
        "1e-38": Decimal("1e-38"),
        "1e-39": NO,
        "1": NO,
        "0." + "1" * 39: Refused("0." + "1" * 39),
    },
    "FLOAT": _float(
        {
            "16777216": 16777216.0,
            "16777217": NO,
            "3.14159": 3.14159,
            "0.10000000149011612": 0.1,
            "0.123456789": NO,
            "3.4028235e38": 3.4028235e38,
            "3.4028236e38": NO,
            "1e39": NO,
            "1e-45": 1.4e-45,
            "1e-46": NO,
            "1.17549435e-38": 1.17549435e-38,
        }
    ),
    "DOUBLE": _float(
        {
            "9007199254740992": 9007199254740992.0,
            "9007199254740993": NO,
            "123456789012345678": NO,
            "123456789012345678.25": NO,
            "12345678901234567000": 12345678901234567000.0,
            "0.10000000000000001": 0.1,
            "0.1000000000000000055511151231257827021181583404541015625": 0.1,
            "0.1000000000000000055511151231257827021181583404541015626": NO,
            "1.7976931348623157e308": 1.7976931348623157e308,
            "1.7976931348623159e308": NO,
            "5e-324": 5e-324,
            "3e-324": NO,
            "2.2250738585072014e-308": 2.2250738585072014e-308,
            "1e22": 1e22,
            "0.30000000000000004": 0.30000000000000004,
        }
    ),
    "STRING": {
        '""': "",
        '"a"': "a",
        '"\\u00fc\\n\\"\\\\\\/\\b\\f\\r\\t"': '\u00fc\n"\\/\b\f\r\t',
        '"\\u0000"': "\0",
        f'"{EMOJI}"': EMOJI,
        '"\\ud83d\\ude00"': EMOJI,
        '"\u20ac\\u20AC"': "\u20ac\u20ac",
        '"\\ufffe"': "\ufffe",
        '"null"': "null",
        '" a "': " a ",
        "5": "5",
        "-0": "-0",
        "1.50": "1.50",
        "1e2": "1e2",
        "1E+2": "1E+2",
        "123456789012345678.25": "123456789012345678.25",
        "1e400": "1e400",
        "1234567890123456789012345678901234567890": "1234567890123456789012345678901234567890",
        "true": "true",
        "false": "false",
        "[]": "[]",
        "{}": "{}",
        '[1, 2.50 ,"\\u00fc"]': '[1, 2.50 ,"\\u00fc"]',
        '{"b": 1e400,\t"a":[null]}': '{"b": 1e400,\t"a":[null]}',
        "null": None,
        '"cut\\ud83d"': NO,
        '"\\ude00\\ud83d"': NO,
        '"\\ud83dx"': NO,
        '"\\ud83d\\u0041"': NO,
        '"' + "x" * 70 + '\\ud83d"': Refused('"' + "x" * 59 + "..."),
        '"' + "\u20ac" * 30 + '\\ud83d"': Refused('"' + "\u20ac" * 19 + "..."),
        '"\\x"': Wrong(JSON + "byte {at2} is `x`, where a letter of an escape should be"),
        '"\\u12g4"': Wrong(JSON + "byte {at5} is `g`, where a hexadecimal digit should be"),
        '"a\nb"': Wrong(JSON + "byte {at2} is 0xa, where an escaped character should be"),
        "undefined": Wrong(JSON + "undefined at byte {at} is no JSON value"),
        "'a'": Wrong(JSON + "byte {at} is `'`, where a value should be"),
        "[1 2]": Wrong(JSON + "byte {at3} is `2`, where a comma or `]` should be"),
        "[1,]": Wrong(JSON + "byte {at3} is `]`, where a value should be"),
        '{"a" 1}': Wrong(JSON + "byte {at5} is `1`, where a colon should be"),
    },
    "BINARY": {
        '""': b"",
        '"AQI="': b"\1\2",
        '"AQID"': b"\1\2\3",
        '"/+8="': b"\xff\xef",
        "null": None,
        '"AQI"': NO,
        '"AQJ="': NO,
        '"AQ=="': b"\1",
        '"AR=="': NO,
        '"_-8="': NO,
        '" AQI="': NO,
        '"AQI=\\n"': NO,
        '"AQID===="': NO,
        '"?"': NO,
        "1": NO,
        "[1]": NO,
    },
    "DATE": {
        '"2013-01-01"': day("2013-01-01"),
        '"2012-02-29"': day("2012-02-29"),
        '"0001-01-01"': day("0001-01-01"),
        '"1582-10-10"': day("1582-10-10"),
        '"1900-02-28"': day("1900-02-28"),
        '"1969-12-31"': day("1969-12-31"),
        '"9999-12-31"': day("9999-12-31"),
        "null": None,
        '"2013-02-29"': NO,
        '"1900-02-29"': NO,
        '"2013-04-31"': NO,
        '"2013-00-01"': NO,
        '"2013-13-01"': NO,
        '"2013-01-00"': NO,
        '"0000-01-01"': NO,
        '"10000-01-01"': NO,
        '"55000-01-01"': NO,
        '"01012026"': NO,
        '"20130101"': NO,
        '"0"': NO,
        '""': NO,
        '"2013"': NO,
        '"2013-01"': NO,
        '"2013-1-1"': NO,
        '"13-01-01"': NO,
        '"2013/01/01"': NO,
        '"01.01.2013"': NO,
        '"2013-01-01T00:00:00"': NO,
        '"2013-01-01 "': NO,
        '"2013-01-01Z"': NO,
        '"today"': NO,
        '"2013-01-0\\u0031"': NO,
        "15706": NO,
        "1.5": NO,
        "true": NO,
        "[]": NO,
        "{}": NO,
    },
    "TIMESTAMP": {text: at(f"{value}+00:00") for text, value in (_TIMES | _ZONED).items()}
    | dict.fromkeys(_NO_TIMES, NO)
    | {'"9999-12-31T23:59:59-01:00"': NO, '"0001-01-01T00:00:00+00:01"': NO, "null": None},
    "TIMESTAMP_NTZ": {text: at(value) for text, value in _TIMES.items()}
    | dict.fromkeys([*_NO_TIMES, *_ZONED], NO)
    | {"null": None},
}
"""Cases of a column of each type, by the text that is sent."""

NESTED: dict[str, dict[str, Any]] = {
    "ARRAY<INT>": {
        "[]": [],
        "[1, null, 2.0]": [1, None, 2],
        "null": None,
        "[1.5, 1.5]": Refused("1.5", "[]", "INT"),
        '["1"]': Refused('"1"', "[]", "INT"),
        "1": Refused(),
        '"[1]"': Refused(),
        "{}": Refused(),
        "[[1]]": Refused("[1]", "[]", "INT"),
    },
    "ARRAY<STRING>": {
        '["a", 1.50, {"b": 2.0}, null]': ["a", "1.50", '{"b": 2.0}', None],
        '["\\ud83d"]': Refused('"\\ud83d"', "[]", "STRING"),
    },
    "MAP<STRING, DECIMAL(9, 2)>": {
        "{}": {},
        '{"x": 1.5, "y": null, "": "2"}': {"x": Decimal("1.50"), "y": None, "": Decimal("2.00")},
        "null": None,
        '{"x": 1.239}': Refused("1.239", "[]", "DECIMAL(9, 2)"),
        '{"\\ud83d": 1}': Refused('"\\ud83d"', " key", "STRING"),
        '{"\\u0078": 1}': {"x": Decimal("1.00")},
        "[]": Refused(),
        '"{}"': Refused(),
        '{"x": 1, "x": 1}': Wrong(JSON + '"x" is in `{column}` twice'),
        '{"x": 1, "\\u0078": 2}': Wrong(JSON + '"\\u0078" is in `{column}` twice'),
    },
    "STRUCT<`a-size`: DECIMAL(4, 1), days: ARRAY<DATE>, at: TIMESTAMP>": {
        "{}": {"a-size": None, "days": None, "at": None},
        "null": None,
        '{"a-size": 100.5, "other": {"days": 1}, "days": ["2013-01-03", null]}': {
            "a-size": Decimal("100.5"),
            "days": [day("2013-01-03"), None],
            "at": None,
        },
        '{"at": "2013-01-01T12:00:00Z", "A-size": "any"}': {
            "a-size": None,
            "days": None,
            "at": at("2013-01-01T12:00:00+00:00"),
        },
        '{"a-size": 1.25}': Refused("1.25", ".a-size", "DECIMAL(4, 1)"),
        '{"days": ["55000-01-01"]}': Refused('"55000-01-01"', ".days[]", "DATE"),
        '{"at": 1356998400}': Refused("1356998400", ".at", "TIMESTAMP"),
        "[]": Refused(),
        '"{}"': Refused(),
        '{"at": null, "at": null}': Wrong(JSON + "`{column}.at` is in it twice"),
        '{"at": null, "\\u0061t": null}': Wrong(JSON + "`{column}.at` is in it twice"),
        '{"other": 1, "other": 2}': {"a-size": None, "days": None, "at": None},
    },
    "ARRAY<STRUCT<n: MAP<STRING, ARRAY<TINYINT>>>>": {
        '[{"n": {"a": [127, -128]}}, null, {}]': [{"n": {"a": [127, -128]}}, None, {"n": None}],
        '[{"n": {"a": [1, 128]}}]': Refused("128", "[].n[][]", "TINYINT"),
        '[{"n": [1]}]': Refused("[1]", "[].n", "MAP<STRING, INT>"),
    },
}

LOCAL_TIMES: dict[str, Any] = {
    '"2013-01-01T12:00:00"': at("2013-01-01T11:00:00+00:00"),
    '"2013-07-01T12:00"': at("2013-07-01T10:00:00+00:00"),
    '"2013-01-01T12:00:00Z"': at("2013-01-01T12:00:00+00:00"),
    '"2013-03-31T01:59:59.999999"': at("2013-03-31T00:59:59.999999+00:00"),
    '"2013-03-31T02:30:00"': Wrong("`{column}` is {text}, a time that Europe/Berlin doesn't have"),
    '"2013-03-31T03:00:00"': at("2013-03-31T01:00:00+00:00"),
    '"2013-10-27T02:30:00"': Wrong("`{column}` is {text}, a time that Europe/Berlin has twice"),
    '"2013-10-27T02:30:00+02:00"': at("2013-10-27T00:30:00+00:00"),
    '"2013-10-27T03:00:00"': at("2013-10-27T02:00:00+00:00"),
    '"9999-12-31T23:59:59"': at("9999-12-31T22:59:59+00:00"),
    '"0001-01-01T00:00:00"': NO,
}
"""Those of a TIMESTAMP where nights end by the clocks of Berlin."""

WHOLE: dict[bytes, str | None] = {
    b'{"id": "%s"}': None,
    b' {"id": "%s"}\r\n\t': None,
    b'{"id": "%s", "x": {"deep": [1, {"er": null}]}, "y": true}': None,
    b'{"\\u0069d": "%s"}': None,
    b'{"id": "%s", "x": ' + b"[" * 999 + b"]" * 999 + b"}": None,
    b'{"id": "%s", "n": ' + b"1" * 100_000 + b"}": None,
    b'{"id": "%s", "x": "' + b"y" * 100_000 + b'"}': None,
    b'{"id": "%s", "x": ' + b"[" * 1000 + b"]" * 1000 + b"}": JSON + "it is nested deeper than 1000 at byte {deep}",
    b'{"id": "%s", "id": "%s"}': JSON + "`id` is in it twice",
    b'{"id": null, "\\u0069d": "%s"}': JSON + "`id` is in it twice",
    b'{"id": "%s", "x": NaN}': JSON + "NaN at byte {nan} is no JSON value",
    b'{"id": "%s", "x": nul}': JSON + "nul at byte {nan} is no JSON value",
    b"": JSON + "the value is empty",
    b" \n": JSON + "the value is empty",
    b"{": JSON + "it ends in the middle, after 1 bytes",
    b'{"id": "a"': JSON + "it ends in the middle, after 10 bytes",
    b'{"id": "a': JSON + "it ends in the middle, after 9 bytes",
    b'{"id": "a\\': JSON + "it ends in the middle, after 10 bytes",
    b'{"id": "a", "x": tr': JSON + "it ends in the middle, after 19 bytes",
    b'{"id": "a", "x": -': JSON + "it ends in the middle, after 18 bytes",
    b"null": JSON + "it is null",
    b"7": JSON + "it is 7",
    b'"text"': JSON + 'it is "text"',
    b'[{"id": "a"}]': JSON + 'it is [{"id": "a"}]',
    b"plain text": JSON + "plain at byte 0 is no JSON value",
    b"bad": JSON + "bad at byte 0 is no JSON value",
    b"NaN": JSON + "NaN at byte 0 is no JSON value",
    b'{"id": 1.': JSON + "it ends in the middle, after 9 bytes",
    b'{"id": 1e+': JSON + "it ends in the middle, after 10 bytes",
    b"id=a": JSON + "id at byte 0 is no JSON value",
    b"<id/>": JSON + "byte 0 is `<`, where a value should be",
    b'{"id": "a"} x': JSON + "more follows its end at byte 12",
    b'{"id": "a"}{"id": "b"}': JSON + "more follows its end at byte 11",
    b'{"id": "a"},': JSON + "more follows its end at byte 11",
    b"{'id': 'a'}": JSON + "byte 1 is `'`, where a name in double quotes should be",
    b"{id: 1}": JSON + "byte 1 is `i`, where a name in double quotes should be",
    b'{"id": "a",}': JSON + "byte 11 is `}`, where a name in double quotes should be",
    b'{"id": "\xff"}': "not UTF-8",
    b'{"id": "\xc0\x80"}': "not UTF-8",
    b'{"id": "\xed\xa0\x80"}': "not UTF-8",
    b'{"id": "\xf4\x90\x80\x80"}': "not UTF-8",
    b'{"id": "\xe2\x82': "not UTF-8",
    b'{"id": "a", "x": "\x80"}': "not UTF-8",
    b"\xff\xfe{\x00}\x00": "not UTF-8",
    b'\xef\xbb\xbf{"id": "a"}': JSON + "byte 0 is 0xef, where a value should be",
    b"\x00\x00\x00\x00\x01{}": JSON + "byte 0 is 0x0, where a value should be",
    b"{}": "`id` is missing",
    b'{"id": null}': "`id` is missing",
    b'{"ID": "a"}': "`id` is missing",
}
"""Values of records whole, with the reasons of those that are no events; `%s` is where an id is put."""
