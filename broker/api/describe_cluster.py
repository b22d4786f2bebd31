"""DescribeCluster (KIP-700): the cluster's id, controller and brokers. Versions 0-2.

Endpoint type 1 (brokers) is served; 2 (controllers, KIP-919) is refused as Kafka's brokers refuse it. No broker
is ever fenced. Operations are all there are: there is no authorizer.
"""

from penstock.broker.acls import CLUSTER_OPERATIONS, operations_bits
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import DescribeClusterRequest, DescribeClusterResponse

KEY, VERSIONS = 60, (0, 2)
BROKERS, CONTROLLERS = 1, 2


async def handle(context: Context, request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """Answer with all brokers that live."""
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    response = DescribeClusterResponse(
        cluster_id=context.cluster_id,
        controller_id=context.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker, host=host, port=port, rack=context.racks.get(broker)
            )
            for broker, (host, port) in context.brokers_for(call.listener).items()
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations_bits(CLUSTER_OPERATIONS)
    return response
