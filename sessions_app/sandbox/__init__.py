"""A stand-in for WAHA on this machine: for demos and tests. It reaches nobody and writes down everything it accepted."""

from sessions_app.sandbox.server import Sandbox

__all__ = ["Sandbox"]
