"""CreateAcls (KIP-140, KIP-290): refused rule by rule, since there is no authorizer. Versions 0-3."""

from penstock.broker.acls import check_elements, no_authorizer
from penstock.broker.context import Call, Context
from penstock.pyx.wire.messages import CreateAclsRequest, CreateAclsResponse

KEY, VERSIONS = 30, (0, 3)


async def handle(context: Context, request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    """Answer SECURITY_DISABLED for each rule."""
    error = no_authorizer()
    async for one in call.turns.each(request.creations):
        check_elements(one.resource_type, one.resource_pattern_type, one.operation, one.permission_type)
    Result = CreateAclsResponse.AclCreationResult
    return CreateAclsResponse(results=[Result(error_code=error.code, error_message=error.what) for _ in request.creations])
