"""AlterUserScramCredentials: set and delete users' SCRAM credentials (KIP-554). Version 0.

What is stored is made of the salted password that the client sends (`scram.py`). A user may stand in a request
once. No client can log in by them yet: there are no SASL listeners.
"""

from collections import Counter

from penstock.broker.configs import scram
from penstock.broker.configs.entities import Entity
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

KEY, VERSIONS = 51, (0, 0)

Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion


async def handle(context: Context, request: AlterUserScramCredentialsRequest, call: Call) -> AlterUserScramCredentialsResponse:
    """Change one user after the other; one that fails does not touch the others."""
    asked: list[Deletion | Upsertion] = [*request.deletions, *request.upsertions]
    names = Counter(one.name for one in asked)
    results: dict[str, Result] = {}
    changes: dict[Entity, dict[str, str | None]] = {}
    async for one in call.turns.each(asked):
        result = results.setdefault(one.name, Result(user=one.name, error_message=None))
        try:
            if names[one.name] > 1:
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
            changes[Entity(user=one.name)] = await _delete(context, one) if isinstance(one, Deletion) else _upsert(one)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
    await context.entities.alter(changes)
    return AlterUserScramCredentialsResponse(results=list(results.values()))


async def _delete(context: Context, one: Deletion) -> dict[str, str | None]:
    scram.check(one.name, one.mechanism)
    mechanism, _ = scram.MECHANISMS[one.mechanism]
    if mechanism not in (await context.entities.own(Entity(user=one.name))).texts:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return {mechanism: None}


def _upsert(one: Upsertion) -> dict[str, str | None]:
    scram.check(one.name, one.mechanism, one.iterations)
    given = scram.Upsertion(one.mechanism, one.iterations, bytes(one.salt), bytes(one.salted_password))
    return {scram.MECHANISMS[one.mechanism][0]: scram.text_of_credential(given)}
