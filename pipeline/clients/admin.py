"""What operators and stages ask a cluster: topics, configs, logs, groups."""

from __future__ import annotations

from penstock.pipeline.clients import configs, groups, logs, opentransactions, quorum, topics, truncation
from penstock.pipeline.clients.client import Client
from penstock.pipeline.clients.configs import BROKER_RESOURCE, GROUP_RESOURCE, LOGGER_RESOURCE, TOPIC_RESOURCE, ConfigEntry
from penstock.pipeline.clients.groups import GroupListing
from penstock.pipeline.clients.logs import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAt

__all__ = [
    "BROKER_RESOURCE",
    "EARLIEST",
    "GROUP_RESOURCE",
    "LATEST",
    "LOGGER_RESOURCE",
    "MAX_TIMESTAMP",
    "TOPIC_RESOURCE",
    "Admin",
    "ConfigEntry",
    "GroupListing",
    "OffsetAt",
]


class Admin(Client):
    """A client with administration, for asyncio. Everything is retried on errors that another try may cure, until
    `default.api.timeout.ms`; then, and on other errors, KafkaError is raised.

        async def make() -> None:
            async with Admin("host:9092") as admin:
                await admin.create_topics({"events": 6}, configs={"retention.ms": "604800000"}, exist_ok=True)

        asyncio.run(make())
    """

    # Its methods are functions of a client, each in the file of its noun.
    create_topics = topics.create_topics
    delete_topics = topics.delete_topics
    create_partitions = topics.create_partitions
    elect_leaders = topics.elect_leaders
    refused_reassignment = topics.refused_reassignment

    describe_configs = configs.describe_configs
    config_entries = configs.config_entries
    alter_configs = configs.alter_configs

    controller = quorum.controller

    list_offsets = logs.list_offsets
    segment_offsets = logs.segment_offsets
    replica_ends = logs.replica_ends
    start_offset = logs.start_offset
    end_offset = logs.end_offset
    offsets_for_leader_epoch = logs.offsets_for_leader_epoch
    find_truncations = truncation.find_truncations
    fetch_at = logs.fetch_at
    batch_at = logs.batch_at
    delete_records = logs.delete_records
    log_dirs = logs.log_dirs

    open_transactions = opentransactions.open_transactions

    committed = groups.committed
    committed_positions = groups.committed_positions
    all_committed = groups.all_committed
    settled = groups.settled
    commit = groups.commit
    delete_offsets = groups.delete_offsets
    describe_group = groups.describe_group
    describe_consumer_group = groups.describe_consumer_group
    delete_groups = groups.delete_groups
    list_groups = groups.list_groups
    group_listings = groups.group_listings
