"""Produce and Fetch: requests read, carried out on the logs, and answered."""
