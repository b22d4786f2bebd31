"""Replication, as one broker has counted it; on one node nothing ever happens."""

from __future__ import annotations

from penstock.broker.clustermember import ReplicationFigures
from penstock.broker.metrics.families import (
    ACTIVE_CONTROLLERS,
    COPIES_BEGUN_AGAIN,
    ELECTIONS,
    FETCH_ERRORS,
    FULL_FOLDERS,
    HANGS,
    ISOLATED,
    ISR_EXPANDS,
    ISR_SHRINKS,
    LEASE_LEFT,
    MAX_LAG,
    QUEUE,
    REFUSED_TRUNCATIONS,
    REPLICATION_BYTES_IN,
    SESSIONS_LOST,
    UNCLEAN_ELECTIONS,
)
from penstock.metrics import Page, one

NO_LEASE_S = -1


def write(page: Page, figures: ReplicationFigures) -> None:
    """All families of replication that have one number for the broker."""
    left_ms = figures.lease_left_ms
    for family, number in (
        (ACTIVE_CONTROLLERS, int(figures.is_controller)),
        (QUEUE, figures.controller_queue),
        (ELECTIONS, figures.elections),
        (UNCLEAN_ELECTIONS, figures.unclean_elections),
        (ISR_SHRINKS, figures.isr_shrinks),
        (ISR_EXPANDS, figures.isr_expands),
        (MAX_LAG, figures.lag),
        (REPLICATION_BYTES_IN, figures.fetched_bytes),
        (FETCH_ERRORS, figures.fetch_errors),
        (REFUSED_TRUNCATIONS, figures.refused_truncations),
        (COPIES_BEGUN_AGAIN, figures.begun_again),
        (SESSIONS_LOST, figures.sessions_lost),
        (HANGS, figures.hangs),
        (FULL_FOLDERS, figures.full_folders),
        (LEASE_LEFT, NO_LEASE_S if left_ms is None else left_ms / 1000),
        (ISOLATED, figures.isolated),
    ):
        one(page, family, number)
