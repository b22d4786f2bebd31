"""CreateAcls: store ACLs (KIP-140, KIP-290); one that is there already is no error. Versions 0-3.

Kafka without an authorizer answers SECURITY_DISABLED; this broker keeps them for the authorizer to come, and
says at start that it doesn't enforce them.
"""

from penstock.broker.acls import Acl, check, has_unknown
from penstock.broker.context import Call, Context
from penstock.broker.dispatch import CloseConnection
from penstock.errors import KafkaError
from penstock.pyx.wire.messages import CreateAclsRequest, CreateAclsResponse

KEY, VERSIONS = 30, (0, 3)


async def handle(context: Context, request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    """Create those that are right; one that is wrong does not touch the others."""
    response = CreateAclsResponse()
    right = []
    for creation in request.creations:
        acl = Acl(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        if has_unknown(acl):
            raise CloseConnection("an ACL with an unknown element")
        result = CreateAclsResponse.AclCreationResult(error_message=None)
        try:
            check(acl)
            right.append(acl)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
        response.results.append(result)
    await context.acls.add(right)
    return response
