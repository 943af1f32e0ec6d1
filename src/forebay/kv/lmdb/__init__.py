"""The engine `lmdb`: a B-tree in a mapped file, and the check of such a file without LMDB."""
