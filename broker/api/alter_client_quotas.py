"""AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546, KIP-612). Versions 0-1.

They are stored and described; nothing enforces them yet. Entities that are right are changed in one step, or
in a cluster in steps of `entities.AT_ONCE`; an entity that stands in the request twice is refused, as is a NaN (which
Kafka takes).
"""

from penstock.broker.configs import quotas
from penstock.broker.configs.entities import Entity
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

KEY, VERSIONS = 49, (0, 1)

Entry = AlterClientQuotasRequest.EntryData
Answer = AlterClientQuotasResponse.EntryData


async def handle(context: Context, request: AlterClientQuotasRequest, call: Call) -> AlterClientQuotasResponse:
    """Change one entity after the other; one that fails does not touch the others."""
    answers: dict[tuple[tuple[str, str | None], ...], Answer] = {}
    changes: dict[Entity, dict[str, str | None]] = {}
    async for entry in call.turns.each(request.entries):
        parts = tuple((part.entity_type, part.entity_name) for part in entry.entity)
        described = [AlterClientQuotasResponse.EntityData(entity_type=kind, entity_name=name) for kind, name in parts]
        again = parts in answers
        answer = answers.setdefault(parts, Answer(error_message=None, entity=described))
        try:
            entity = await quotas.parse_entity(parts)
            if again or entity in changes or len({op.key for op in entry.ops}) < len(entry.ops):
                changes.pop(entity, None)
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {dict(parts)}")
            changes[entity] = _texts(entity, entry)
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.what
    if not request.validate_only:
        await context.entities.alter(changes)
    return AlterClientQuotasResponse(entries=list(answers.values()))


def _texts(entity: Entity, entry: Entry) -> dict[str, str | None]:
    return {op.key: None if op.remove else quotas.text_of_quota(entity, op.key, op.value) for op in entry.ops}
