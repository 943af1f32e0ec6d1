"""The tests of SQLAlchemy for dialects, which `test_sqlalchemy_suite.py` runs in a process of their own."""

from sqlalchemy.testing.suite import *  # noqa: F403
