"""Compaction: a pass over one log, and what it is made of."""
