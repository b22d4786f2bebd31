"""The data plane: Cython without the GIL. Each folder has a map in its `__init__.py`; beside the folders:

posix        what is asked of Linux and of libc, and atomic numbers
descriptors  file descriptors, which the whole process shares
errorcodes   Kafka's error codes
siphash      a hash under a secret key: whoever doesn't know the key can't choose bytes that collide
idplace      the partition that an id belongs to by Kafka's murmur2
kernel       the data plane's calls of the kernel, tried one by one
rocks        ids that a dedupe worker has seen, in memory and in RocksDB
"""

if __name__ != "penstock.pyx":
    raise ImportError("`pyx` is a part of penstock: `import penstock.pyx`")
