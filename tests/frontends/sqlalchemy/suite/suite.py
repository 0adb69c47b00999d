"""The suite."""

from sqlalchemy.testing.suite import *  # noqa: F403 - it is to be collected
