"""DeleteAcls: take away the ACLs that filters mean (KIP-140, KIP-290). Versions 0-3.

All filters are looked up before anything is taken away, so an ACL may be in the answer of several.
"""

from penstock.broker.acls import AclFilter, has_unknown
from penstock.broker.context import Call, Context
from penstock.broker.dispatch import CloseConnection
from penstock.pyx.wire.messages import DeleteAclsRequest, DeleteAclsResponse

KEY, VERSIONS = 31, (0, 3)


async def handle(context: Context, request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    """Answer per filter what was taken away."""
    filters = []
    for asked in request.filters:
        wanted = AclFilter(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )
        if has_unknown(wanted):
            raise CloseConnection("an ACL filter with an unknown element")
        filters.append(wanted)
    response = DeleteAclsResponse()
    for gone in await context.acls.remove(filters):
        result = DeleteAclsResponse.DeleteAclsFilterResult(error_message=None)
        result.matching_acls = [
            DeleteAclsResponse.DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in gone
        ]
        response.filter_results.append(result)
    return response
