"""Small arrays on their way to a device, packed into one buffer and one copy."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32

_ALIGNED = 4  # each array begins at a multiple of 16 bytes


class StagedArrays:
    """Arrays of 32-bit integers in one host buffer, pinned with a GPU.

    When a pinned buffer is freed, torch keeps its memory until pending copies have read it.
    """

    __slots__ = ("_places", "host", "values")

    def __init__(self, arrays: Mapping[str, Int32], pinned: bool) -> None:
        self._places: dict[str, slice] = {}
        end = 0
        for name, array in arrays.items():
            self._places[name] = slice(end, end + len(array))
            end += -(-len(array) // _ALIGNED) * _ALIGNED
        self.host = torch.empty(end, dtype=torch.int32, pin_memory=pinned)
        self.values: Int32 = self.host.numpy()
        for name, array in arrays.items():
            self.values[self._places[name]] = array

    def on_host(self, name: str) -> Tensor:
        """Return one array, as a view of the buffer."""
        return self.host[self._places[name]]

    def put(self, name: str, values: list[int]) -> None:
        """Write the first elements of one array, before it is moved."""
        begin = self._places[name].start
        self.values[begin : begin + len(values)] = np.array(values, np.uint32).view(np.int32)

    def move(self, device: torch.device) -> "MovedArrays":
        """Copy all arrays to a device, without waiting for it."""
        return MovedArrays(self._places, self.host.to(device, non_blocking=True))


class MovedArrays:
    """The same arrays on a device: views of one buffer."""

    __slots__ = ("_places", "buffer")

    def __init__(self, places: Mapping[str, slice], buffer: Tensor) -> None:
        self._places = places
        self.buffer = buffer

    def __getitem__(self, name: str) -> Tensor:
        return self.buffer[self._places[name]]


def to_device(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Return an array on a device, without waiting for its work."""
    tensor = torch.from_numpy(values)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
