"""DescribeUserScramCredentials: which mechanisms users have, with how many iterations (KIP-554). Version 0.

Null or no users = all that have credentials. Salts and keys are never shown.
"""

from collections import Counter

from penstock.broker.configs import scram
from penstock.broker.configs.entities import Entity
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse

KEY, VERSIONS = 50, (0, 0)

Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Info = DescribeUserScramCredentialsResponse.CredentialInfo


async def handle(
    context: Context, request: DescribeUserScramCredentialsRequest, call: Call
) -> DescribeUserScramCredentialsResponse:
    """Answer a result for each user, in the order of the request."""
    asked = Counter(user.name for user in request.users or ())
    all_users = (entity.user for entity, configs in context.entities if list(scram.credentials_of(configs)))
    users = list(asked) or [user for user in all_users if isinstance(user, str)]
    results = [_one(context, user, doubled=asked[user] > 1) async for user in call.turns.each(users)]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _one(context: Context, user: str, *, doubled: bool) -> Result:
    if doubled:
        why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return Result(user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=why)
    found = scram.credentials_of(context.entities.get(Entity(user=user)))
    infos = [Info(mechanism=mechanism, iterations=iterations) for mechanism, iterations in found]
    if not infos:
        why = f"Attempt to describe a user credential that does not exist: {user}"
        return Result(user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=why)
    return Result(user=user, error_message=None, credential_infos=infos)
