"""The version that a heartbeat names. The same as in pyproject.toml; a test holds the two together."""

VERSION = "0.1.0"
