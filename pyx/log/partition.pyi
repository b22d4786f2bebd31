class LogSetOwner:
    """What the data plane needs of `penstock.pyx.log.logmanager.LogManager`."""
