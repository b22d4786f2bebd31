"""Where ids belong: Kafka's murmur2 of each, without the GIL."""

import numpy as np
import numpy.typing as npt

def homes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], null: npt.NDArray[np.bool_], partitions: int
) -> npt.NDArray[np.int32]:
    """The partition of so many that each id belongs into; -1 for a record without an id, which belongs anywhere.

    Id i is `data[starts[i]:starts[i + 1]]`. Raises ValueError when the arrays don't fit together.
    """
