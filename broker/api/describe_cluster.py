"""DescribeCluster (KIP-700): the cluster's id, controller and brokers. Versions 0-2.

Endpoint type 1 (brokers) is served; 2 (controllers, KIP-919) is refused as Kafka's brokers refuse it.
"""

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import DescribeClusterRequest, DescribeClusterResponse

KEY, VERSIONS = 60, (0, 2)
BROKERS, CONTROLLERS = 1, 2


async def handle(context: Context, request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """Answer with this one broker."""
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="This endpoint is a broker's.",
            endpoint_type=request.endpoint_type,
        )
    return DescribeClusterResponse(
        cluster_id=context.cluster_id,
        controller_id=context.node_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=context.node_id, host=context.advertised.host, port=context.advertised.port
            )
        ],
    )
