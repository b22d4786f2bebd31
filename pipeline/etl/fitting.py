"""Whether the declared schema fits the table that is there, checked before anything is planned."""

from __future__ import annotations

import json

from penstock.pipeline.etl import columntypes
from penstock.pipeline.etl.declared import RESERVED, Declared
from penstock.pipeline.etl.errors import EtlError, Refused


def check_fits(declared: Declared, schema: str, table_path: str) -> None:
    """Compare with a table's schema as Delta's log has it ("": no table yet).

    Raises Refused with the statement that would make them fit, EtlError when the schema can't be read.
    """
    if not schema:
        return
    try:
        fields = {field["name"].lower(): field for field in json.loads(schema)["fields"]}
        types = {name: columntypes.of_delta(field["type"]) for name, field in fields.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise EtlError(f"the schema of the table `{table_path}` can't be read ({error!r})") from None
    alter = f"ALTER TABLE delta.`{table_path}`"
    for column in declared.columns:
        name = column.name.lower()
        if name not in fields:
            raise Refused(
                f"the table `{table_path}` has no column `{column.name}`, which the schema declares: add it with"
                f" `{alter} ADD COLUMN {column.quoted} {column.type}`, or load into another table"
            )
        if types[name] != column.canonical:
            raise Refused(
                f"the table `{table_path}` has `{column.name}` as {types[name]}, the schema declares {column.type}: declare"
                " what the table has, or load into another table"
            )
    nullable = {column.name.lower() for column in declared.columns if not column.required}
    known = nullable | {column.name.lower() for column in declared.required} | RESERVED
    for name, field in fields.items():
        if not field["nullable"] and (name in nullable or name not in known):
            raise Refused(
                f"the table `{table_path}` takes no row without `{field['name']}`, which the schema does not require:"
                f" declare it NOT NULL, or `{alter} ALTER COLUMN `{field['name']}` DROP NOT NULL`"
            )
