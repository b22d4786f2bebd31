class LogSetOwner:
    """What the data plane needs of `penstock.pyx.logs.Logs`."""
