"""The data plane: Cython without the GIL. Each folder has a map in its `__init__.py`; beside the folders:

errorcodes  Kafka's error codes
"""

if __name__ != "penstock.pyx":
    raise ImportError("`pyx` is a part of penstock: `import penstock.pyx`")
