"""DescribeClientQuotas: the quotas of the entities that a filter means (KIP-546). Versions 0-1."""

from penstock.broker.configs import quotas
from penstock.broker.context import Call, Context
from penstock.errors import KafkaError
from penstock.pyx.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse

KEY, VERSIONS = 48, (0, 1)

Entry = DescribeClientQuotasResponse.EntryData


async def handle(context: Context, request: DescribeClientQuotasRequest, call: Call) -> DescribeClientQuotasResponse:
    """Answer an entry for each entity."""
    components = [quotas.Component(one.entity_type, one.match_type, one.match) for one in request.components]
    try:
        quotas.check_filter(components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.what, entries=None)
    entries = []
    for entity, values in quotas.find(context.entities, components, request.strict):
        parts = [DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts()]
        described = [DescribeClientQuotasResponse.ValueData(key=key, value=value) for key, value in values.items()]
        entries.append(Entry(entity=parts, values=described))
    return DescribeClientQuotasResponse(error_message=None, entries=entries)
