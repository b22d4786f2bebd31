"""How the names begin of the groups in which mirror and dedupe keep their positions, and of their transactional ids.

Such a position is not a consumer's bookmark: without it, nobody knows what was copied. The broker never lets it expire, and
flushes what belongs to it.
"""

from __future__ import annotations

MIRROR_GROUPS = "penstock-mirror."
DEDUPE_GROUPS = "penstock-dedupe."


def is_stage(name: str) -> bool:
    """Whether the name of a group or a transactional id says that it is a mirror's or a dedupe's."""
    return name.startswith((MIRROR_GROUPS, DEDUPE_GROUPS))
