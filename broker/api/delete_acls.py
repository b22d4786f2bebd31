"""DeleteAcls (KIP-140, KIP-290): refused filter by filter, since there is no authorizer. Versions 0-3."""

from penstock.broker.acls import check_elements, no_authorizer
from penstock.broker.context import Call, Context
from penstock.pyx.wire.messages import DeleteAclsRequest, DeleteAclsResponse

KEY, VERSIONS = 31, (0, 3)


async def handle(context: Context, request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    """Answer SECURITY_DISABLED for each filter."""
    error = no_authorizer()
    async for one in call.turns.each(request.filters):
        check_elements(one.resource_type_filter, one.pattern_type_filter, one.operation, one.permission_type)
    Result = DeleteAclsResponse.DeleteAclsFilterResult
    return DeleteAclsResponse(filter_results=[Result(error_code=error.code, error_message=error.what) for _ in request.filters])
