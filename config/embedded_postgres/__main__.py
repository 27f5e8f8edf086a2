"""python -m config.embedded_postgres start|stop|status|run|psql"""
import os
import signal
import sys
import time
from pathlib import Path

import config.embedded_postgres as pg

DATA = Path(__file__).resolve().parents[2] / "var" / "postgres"
cmd = sys.argv[1] if len(sys.argv) > 1 else "status"
if cmd == "start":
    os.environ["EMBEDDED_PG_KEEP"] = "1"
    pg.ensure(DATA)
elif cmd == "stop":
    pg.stop(DATA)
elif cmd == "status":
    up = pg.running(DATA)
    print("running" if up else "stopped", pg.socket_dir(DATA))
    sys.exit(0 if up else 3)
elif cmd == "psql":
    pg.ensure(DATA)
    sys.exit(os.spawnl(os.P_WAIT, pg.bindir() / "psql", "psql", "-h", str(pg.socket_dir(DATA)), "-U", "postgres", *sys.argv[2:]))
elif cmd == "run":  # foreground, for a Procfile: stops the server after the other processes have let go of it
    def bye(*_):
        raise SystemExit(0)
    signal.signal(signal.SIGTERM, bye)
    signal.signal(signal.SIGINT, bye)
    pg.ensure(DATA)
    print("postgresql on", pg.socket_dir(DATA), flush=True)
    try:
        while True:
            time.sleep(3600)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end = time.time() + 4
        while pg.others(DATA) and time.time() < end:
            time.sleep(0.1)
