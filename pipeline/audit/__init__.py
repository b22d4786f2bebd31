"""Counts of records at every hop, taken from the logs and the table, side by side."""
