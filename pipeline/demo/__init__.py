"""The main job on real data: three datacenters' flights, mirrored, deduplicated, one complete table a night."""
