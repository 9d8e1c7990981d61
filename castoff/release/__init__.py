"""A release: the package and wheels of several pins and CPythons in one folder, with index, hashes, provenance."""
