"""Names of the groups under which mirror and dedupe keep their positions.

Such a position is not a consumer's bookmark: without it, nobody knows what was copied. The broker keeps it for ever.
"""

from __future__ import annotations

MIRROR_GROUPS = "penstock-mirror."
DEDUPE_GROUPS = "penstock-dedupe."


def is_stage_group(name: str) -> bool:
    """Whether a group's name says that a mirror's or a dedupe's positions are in it."""
    return name.startswith((MIRROR_GROUPS, DEDUPE_GROUPS))
