"""The version of this package. It is here, at the bottom, so that any module can report it."""

from __future__ import annotations

__version__ = "0.1.0"
