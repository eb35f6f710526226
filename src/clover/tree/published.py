"""Static trees that papers publish."""

from clover.tree.shape import TreeShape


def _shape(paths: str) -> TreeShape:
    return TreeShape.from_paths([int(rank) for rank in path] for path in paths.split())


# Clover-2's static tree (arXiv 2408.00264) has 4, 8, 8, 3 and 2 nodes at depths 1 to 5.
CLOVER2_TREE = _shape(
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
)

# Medusa's static tree (arXiv 2401.10774), as published for 7B models, has 10, 28, 23 and 2 nodes at depths 1 to 4.
MEDUSA_TREE = _shape(
    "0 1 2 3 4 5 6 7 8 9 "
    "00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 20 21 22 30 31 40 50 60 70 80 90 "
    "000 001 002 003 004 005 006 007 008 009 010 011 012 020 021 030 040 050 060 070 100 101 200 0000 0001"
)
