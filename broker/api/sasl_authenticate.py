"""SaslAuthenticate: a step of a SASL exchange (KIP-152, KIP-368). Versions 0-2.

There are no SASL listeners yet, so no exchange is ever under way: ILLEGAL_SASL_STATE, as Kafka answers on a
PLAINTEXT listener.
"""

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import SaslAuthenticateRequest, SaslAuthenticateResponse

KEY, VERSIONS = 36, (0, 2)


async def handle(context: Context, request: SaslAuthenticateRequest, call: Call) -> SaslAuthenticateResponse:
    """Refuse: the connection needs no authentication."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
