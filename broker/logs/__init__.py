"""The log folders and the partitions' logs in them, as the control plane sees them."""
