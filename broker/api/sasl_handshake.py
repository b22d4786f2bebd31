"""SaslHandshake: choose a SASL mechanism. Versions 0-1.

There are no SASL listeners yet: on a PLAINTEXT one Kafka answers ILLEGAL_SASL_STATE without mechanisms.
"""

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse

KEY, VERSIONS = 17, (0, 1)


async def handle(context: Context, request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse:
    """Refuse: the connection needs no authentication."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
