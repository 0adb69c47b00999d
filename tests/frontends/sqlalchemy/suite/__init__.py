"""SQLAlchemy's own suite for dialects, run on einsql: `make sqlalchemy`."""
