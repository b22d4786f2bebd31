"""Configs: what there is, in which layer it is set, and what it is now."""
