"""DescribeAcls: the ACLs that a filter means (KIP-140, KIP-290). Versions 0-3.

Version 0 knows literal names only. ACLs are stored and described; nothing enforces them yet.
"""

from penstock.broker.acls import AclFilter, PatternType, has_unknown
from penstock.broker.context import Call, Context
from penstock.broker.dispatch import CloseConnection
from penstock.pyx.wire.messages import DescribeAclsRequest, DescribeAclsResponse

KEY, VERSIONS = 29, (0, 3)

Resource = DescribeAclsResponse.DescribeAclsResource


async def handle(context: Context, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    """Answer resource by resource."""
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if has_unknown(wanted):
        raise CloseConnection("an ACL filter with an unknown element")
    resources: dict[tuple[int, str, int], Resource] = {}
    for acl in context.acls.find(wanted):
        if call.api_version == 0 and acl.pattern_type != PatternType.LITERAL:
            continue
        resource = resources.setdefault(
            acl[:3],
            Resource(
                resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type
            ),
        )
        resource.acls.append(
            DescribeAclsResponse.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))
