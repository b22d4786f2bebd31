"""Whether the declared schema fits the table that is there, checked before anything is planned; and what the table gains by it.

A column that the table lacks is added, nullable, in the commit of the night that brings its first values. A column that is no
longer declared stays, and is null from then on. Both at once may be a column that was given another name, which no table can
follow: that is refused, and to declare both says that it is none. So nothing needs to be kept but the table's own schema.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.pipeline.etl import columntypes
from penstock.pipeline.etl.declared import RESERVED, Declared
from penstock.pipeline.etl.errors import EtlError, Refused, words_of


def check_fits(declared: Declared, schema: str, table_path: str) -> None:
    """Compare with a table's schema as Delta's log has it ("": no table yet).

    Raises Refused with what would make them fit, EtlError when the schema can't be read.
    """
    if not schema:
        return
    try:
        fields = {field["name"].lower(): field for field in json.loads(schema)["fields"]}
        types = {name: columntypes.of_delta(field["type"]) for name, field in fields.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise EtlError(f"the schema of the table `{table_path}` can't be read ({words_of(error)})") from None
    another = f"or load into another table than `{table_path}`"
    for name, kind in declared.types.items():
        there = types.get(name.lower())
        if there not in (None, columntypes.canonical(kind)):
            raise Refused(
                f"the table `{table_path}` has `{name}` as {there}, the schema declares {kind}: declare"
                " what the table has, or load into another table"
            )
    required = next((column for column in declared.required if column.name.lower() not in fields), None)
    if required is not None:
        raise Refused(
            f"the schema declares `{required.name}` NOT NULL, and the rows that the table has are without it: declare it"
            f" without NOT NULL, {another}"
        )
    nullable = {column.name.lower() for column in declared.columns if not column.required}
    nullable |= {column.name.lower() for column in declared.record_columns}
    known = nullable | {column.name.lower() for column in declared.required} | RESERVED
    for name, field in fields.items():
        if not field["nullable"] and (name in nullable or name not in known):
            raise Refused(
                f"the table `{table_path}` takes no row without `{field['name']}`, which the schema does not require:"
                f" declare it NOT NULL, or `ALTER TABLE delta.`{table_path}` ALTER COLUMN `{field['name']}` DROP NOT NULL`"
            )
    gone = next((field["name"] for name, field in fields.items() if name not in known), None)
    added = next((name for name in sorted(known - RESERVED) if name not in fields), None)
    if added is not None and gone is not None:
        raise Refused(
            f"the schema declares `{added}`, which the table lacks, and no longer `{gone}`, which it has: a column"
            f" can't be given another name. Declare `{gone}`, too, if it is to stay (null where events lack it), {another}"
        )


def grown(schema: str, wanted: str) -> str:
    """A table's schema with the columns of a wanted one that it lacks, behind its own and nullable, as Delta's log has them;
    empty where it lacks none."""
    table: dict[str, Any] = json.loads(schema)
    there = {field["name"].lower() for field in table["fields"]}
    added = [field | {"nullable": True} for field in json.loads(wanted)["fields"] if field["name"].lower() not in there]
    return json.dumps(table | {"fields": [*table["fields"], *added]}) if added else ""
