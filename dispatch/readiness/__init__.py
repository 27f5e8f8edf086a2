"""Whether this installation can send: what an operator asks before a release and when something stands still. It changes nothing.

Each finding says what it found, what mends it, and has its section in docs/readiness.md.
"""
