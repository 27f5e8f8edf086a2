"""A PostgreSQL of the run's own, which it may crash; and PgBouncer in transaction mode in front of it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.rows import dict_row

from config.embedded_postgres import server

BOUNCER_PORT = 6432
BOUNCER = """
[databases]
* = host={socket} port={port} user={role}
[pgbouncer]
listen_addr =
listen_port = {own_port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 8
max_client_conn = 200
server_login_retry = 1
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/log
"""


@contextmanager
def folder() -> Iterator[Path]:
    """One that the server's user may pass through, whoever runs the tests."""
    path = Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Server:
    """The embedded server on a folder of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.restarts: dict[str, int] = {"immediate": 0, "fast": 0}
        self._restarting: threading.Thread | None = None

    def start(self) -> None:
        server.start(self.data)
        if os.geteuid() == 0:  # PgBouncer runs as the server's user then, and may call itself by our role
            with (self.data / "pg_hba.conf").open("r+") as rules:
                old = rules.read()
                rules.seek(0)
                rules.write(f"local all all peer map=chaos\n{old}")
            names = {server.role(), server.SERVER_USER_OF_ROOT}
            with (self.data / "pg_ident.conf").open("a") as names_file:
                names_file.writelines(f"chaos {name} {server.role()}\n" for name in names)
            self._tell(signal.SIGHUP)

    def stop(self) -> None:
        """Like a crash: nothing in it is needed any more."""
        self.until_restarted()
        self._tell(signal.SIGQUIT)
        server.let_go(self.data)
        server.stop(self.data)

    def url(self, database: str = "postgres", *, host: Path | None = None, port: str | int = server.PORT) -> str:
        where = urlencode({"host": str(host or server.socket_folder(self.data))})
        return f"postgres://{quote(server.role())}@:{port}/{database}?{where}"

    def create(self, database: str, template: str) -> None:
        with self.connect("template1") as connection:
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"'.encode())

    def connect(self, database: str) -> psycopg.Connection[dict[str, Any]]:
        where = str(server.socket_folder(self.data))
        return psycopg.connect(
            host=where, port=server.PORT, user=server.role(), dbname=database, autocommit=True, row_factory=dict_row, connect_timeout=5
        )

    def rows(self, database: str, sql: str) -> list[dict[str, Any]]:
        with self.connect(database) as connection:
            return connection.execute(sql.encode()).fetchall()

    def terminate_backends(self, database: str) -> None:
        self.rows(database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IS NOT NULL AND pid <> pg_backend_pid()")

    @property
    def is_restarting(self) -> bool:
        return self._restarting is not None and self._restarting.is_alive()

    def restart(self, mode: str) -> None:
        """In a thread: the others are killed meanwhile as ever. `immediate` is a crash, `fast` a clean stop that waits for nobody."""
        if not self.is_restarting:
            self.restarts[mode] += 1
            how = signal.SIGQUIT if mode == "immediate" else signal.SIGINT
            self._restarting = threading.Thread(target=self._restart, args=(how,), name="restart")
            self._restarting.start()

    def until_restarted(self) -> None:
        if self._restarting is not None:
            self._restarting.join()

    def _restart(self, how: signal.Signals) -> None:
        self._tell(how)
        deadline = time.monotonic() + 20
        while server.is_running(self.data) and time.monotonic() < deadline:
            time.sleep(0.02)
        server.start(self.data)

    def _tell(self, number: signal.Signals) -> None:
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), number)


@contextmanager
def bouncer(target: Server, place: Path, database: str) -> Iterator[str]:
    """The URL of `database` through PgBouncer. It does not run as root: then it is the server's user."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    assert program is not None, "pgbouncer is not installed: apt-get install pgbouncer"
    own = place / "bouncer"
    own.mkdir(mode=0o755)
    options: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam(server.SERVER_USER_OF_ROOT)
        os.chown(own, user.pw_uid, user.pw_gid)
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    config = own / "pgbouncer.ini"
    socket = server.socket_folder(target.data)
    config.write_text(BOUNCER.format(socket=socket, port=server.PORT, role=server.role(), own_port=BOUNCER_PORT, folder=own))
    config.chmod(0o644)
    process = subprocess.Popen([program, "-q", str(config)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **options)
    try:
        deadline = time.monotonic() + 10
        while not (own / f".s.PGSQL.{BOUNCER_PORT}").exists():
            assert process.poll() is None and time.monotonic() < deadline, (own / "log").read_text()
            time.sleep(0.02)
        yield target.url(database, host=own, port=BOUNCER_PORT)
    finally:
        process.terminate()
        process.wait(timeout=10)
