"""DescribeAcls (KIP-140, KIP-290): refused, since there is no authorizer. Versions 0-3."""

from penstock.broker.acls import check_elements, no_authorizer
from penstock.broker.context import Call, Context
from penstock.pyx.wire.messages import DescribeAclsRequest, DescribeAclsResponse

KEY, VERSIONS = 29, (0, 3)


async def handle(context: Context, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    """Answer SECURITY_DISABLED."""
    check_elements(request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type)
    error = no_authorizer()
    return DescribeAclsResponse(error_code=error.code, error_message=error.what)
