"""Penstock: events collected everywhere, mirrored once, deduplicated once, one complete table a night."""

__version__ = "0.1.0"
