"""Find the weights that are in mapped files: a packed copy of them is the only one in the process's own memory."""

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")
_NO_FILES = ("/dev/", "/memfd:", "/SYSV")  # these look like files in the list, but are memory


def bytes_in_memory(weights: Iterable[Tensor]) -> int:
    """Return the bytes of weights in the process's own memory; all bytes if Linux's list of maps is missing."""
    starts, ends = _mapped_files()
    owned = {weight.data_ptr(): weight.nbytes for weight in weights}  # counts a weight with two names once
    return sum(size for place, size in owned.items() if not _inside(place, starts, ends))


def _inside(place: int, starts: list[int], ends: list[int]) -> bool:
    index = bisect_right(starts, place) - 1
    return index >= 0 and place < ends[index]


def _mapped_files() -> tuple[list[int], list[int]]:
    """Return the start addresses of the mapped files, ascending, and their end addresses."""
    starts, ends = list[int](), list[int]()
    for line in _MAPS.read_text(errors="replace").splitlines() if _MAPS.is_file() else ():
        place, _, _, _, inode, *name = line.split(maxsplit=5)
        if inode != "0" and not name[0].startswith(_NO_FILES):
            start, end = place.split("-")
            starts.append(int(start, 16))
            ends.append(int(end, 16))
    return starts, ends
