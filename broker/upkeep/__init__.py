"""What is done to logs and disks without being asked for."""
