"""Where ids belong: Kafka's murmur2 of each, without the GIL."""

import numpy as np
import numpy.typing as npt

def misplaced(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    null: npt.NDArray[np.bool_],
    partitions: int,
    partition: int,
) -> npt.NDArray[np.bool_]:
    """Which ids belong into another partition than `partition` of so many; a record without an id belongs anywhere.

    Id i is `data[starts[i]:starts[i + 1]]`. Raises ValueError when the arrays don't fit together.
    """
