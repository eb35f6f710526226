"""Clover inside other libraries, one file each; the only places that know how those libraries generate."""
