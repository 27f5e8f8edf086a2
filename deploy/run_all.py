"""All of Procfile.production under honcho, for a host without a service manager: .venv/bin/python deploy/run_all.py

When one process ends, all of them end, and so does this; cron starts it again (deploy/crontab.processes). SIGTERM ends them in order.
honcho by itself kills 5 seconds after the first has ended, in the middle of a message; here they get as long as under systemd.
"""

import os
import sys
from pathlib import Path

from honcho import command, manager

PATIENCE = 90  # seconds; above SEND_DEADLINE_SECONDS and half a minute

if __name__ == "__main__":
    manager.KILL_WAIT = PATIENCE
    root = Path(__file__).resolve().parent.parent
    # Not honcho's reading of .env: the settings read that file, with their own rules of quoting.
    options = ["--env", os.devnull, "--app-root", str(root), "--procfile", str(root / "deploy" / "Procfile.production"), "--no-colour"]
    sys.argv[1:] = ["start", *options]
    command.main()
