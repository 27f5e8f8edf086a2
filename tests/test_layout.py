"""The house rules that no linter knows. Each names its exceptions and why they are there."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from sessions_app.models import Session
from sessions_app.providers.base import SessionState
from sessions_app.providers.registry import provider_class

BASE: Path = settings.BASE_DIR
PACKAGES = ("config", "sessions_app", "campaigns", "dispatch")
MODULES = sorted(path for package in PACKAGES for path in (BASE / package).rglob("*.py") if "migrations" not in path.parts)
TESTS = sorted((BASE / "tests").rglob("*.py"))
NO_PLACE_FOR_ANYTHING = {"utils", "helpers", "common", "services", "signals", "managers", "constants", "misc"}

# Who writes a status: the verbs of each package, and the models for the value a row begins with.
WRITES_A_STATUS = {
    "campaigns/transitions.py": "every way a campaign or a step changes status",
    "sessions_app/transitions.py": "every way a session changes status",
    "dispatch/transitions.py": "every way a message leaves UNCONFIRMED, and what a person takes out",
    "dispatch/lanes.py": "claim, settle and recover, in SQL",
    "dispatch/runs.py": "runs are made, finished and stopped there, and what waits in them is skipped",
}
SLEEPS_OR_HANDLES_SIGNALS = {
    "dispatch/stopping.py": "the one module of the engine that does",
    "dispatch/management/commands/worker.py": "children of the q-cluster die with their parent",
    "sessions_app/management/commands/run_sandbox.py": "waits for the signal that ends it",
    "config/embedded_postgres/server.py": "waits for PostgreSQL's own processes, and ends orphans",
    "config/embedded_postgres/__main__.py": "keeps the server up until it is told to stop",
}
READS_THE_ENVIRONMENT = {
    "config/environment.py": "the one place where variables are read",
    "config/embedded_postgres/__main__.py": "names the settings module, as manage.py does",
    "config/wsgi.py": "names the settings module, as manage.py does",
}
LONG_FILES = 400
LONG_COMMANDS = 60


def name_of(path: Path) -> str:
    return path.relative_to(BASE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def dotted(node: ast.AST) -> str:
    """ "os.environ" for such an expression, "" for another."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def used_names(module: ast.Module) -> set[str]:
    """Every dotted name, and what is imported by name: `from time import sleep` counts as time.sleep."""
    found = {dotted(node) for node in ast.walk(module)}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_the_walk_finds_the_project():
    assert {"dispatch/lanes.py", "campaigns/transitions.py", "config/settings.py"} <= {name_of(path) for path in MODULES}


def test_no_module_is_a_place_for_anything():
    everywhere = {part for path in (*MODULES, *TESTS) for part in (*path.relative_to(BASE).parts[:-1], path.stem)}
    assert not everywhere & NO_PLACE_FOR_ANYTHING


# -- who writes a status -------------------------------------------------------------------------------------------------------


def status_writes(module: ast.Module) -> Iterator[int]:
    """Lines that give a stored row another status: `x.status = ...`, `.update(status=...)`, `.create(status=...)`, bulk updates of it."""
    for node in ast.walk(module):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
            if any(isinstance(target, ast.Attribute) and target.attr == "status" and dotted(target) != "self.status" for target in flat):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"update", "create", "update_or_create", "get_or_create"} and is_query(node.func.value):
                if any(keyword.arg == "status" for keyword in node.keywords):
                    yield node.lineno
            elif node.func.attr == "bulk_update" and any(isinstance(one, ast.Constant) and one.value == "status" for one in ast.walk(node)):
                yield node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"(?i)\bset\s+status\s*=", node.value):
            yield node.lineno


def is_query(node: ast.AST) -> bool:
    """Something that ends in a queryset or manager, as opposed to a plain dict."""
    return any(
        isinstance(one, ast.Attribute) and one.attr in {"objects", "filter", "exclude", "steps", "logs", "runs"} for one in ast.walk(node)
    )


@pytest.mark.parametrize(
    "code",
    [
        "campaign.status = S.RUNNING",
        "campaign.status, campaign.due_at = S.RUNNING, None",
        "Campaign.objects.filter(pk=1).update(status=S.RUNNING)",
        "campaign.steps.update(status='RUNNING')",
        "Session.objects.create(status='CONNECTED')",
        "Campaign.objects.bulk_update(rows, ['status'])",
        "SQL = 'UPDATE x SET status = 1'",
    ],
)
def test_a_write_is_noticed(code):
    assert list(status_writes(ast.parse(code)))


def test_only_the_verbs_write_a_status():
    writers = {name_of(path) for path in MODULES if list(status_writes(tree(path)))}
    assert writers == set(WRITES_A_STATUS)
    assert {"campaigns/transitions.py", "sessions_app/transitions.py"} <= writers


# -- sleeping, signals, the environment ----------------------------------------------------------------------------------------


def test_only_the_named_modules_sleep_or_handle_signals():
    found = {name_of(path) for path in MODULES if used_names(tree(path)) & {"time.sleep", "signal", "asyncio.sleep", "threading.Timer"}}
    assert found == set(SLEEPS_OR_HANDLES_SIGNALS)
    assert "dispatch/stopping.py" in found


def test_only_the_named_modules_read_the_environment():
    names = {"os.environ", "os.getenv", "os.environb", "environ.Env.read_env"}
    found = {name_of(path) for path in MODULES if used_names(tree(path)) & names}
    assert found == set(READS_THE_ENVIRONMENT)
    assert "config/environment.py" in found


def read_at_import(module: ast.Module) -> list[int]:
    """Lines that ask what time it is outside of any function: a suite goes on for minutes after that."""
    functions = [node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    bodies = [function.body if isinstance(function.body, list) else [function.body] for function in functions]
    later = {id(node) for body in bodies for statement in body for node in ast.walk(statement)}
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and id(node) not in later]
    return [call.lineno for call in calls if re.search(r"(^|\.)(now|today|monotonic|database_now|time\.time)$", dotted(call.func))]


def test_nobody_keeps_the_time_of_the_import():
    assert {name_of(path): lines for path in (*MODULES, *TESTS) if (lines := read_at_import(tree(path)))} == {}


def test_the_time_of_an_import_is_noticed():
    code = "LATER = timezone.now() + LONG\n@mark(until=time.time())\ndef test():\n    return timezone.now()"
    assert read_at_import(ast.parse(code)) == [1, 2]


def test_exceptions_name_modules_that_are_there():
    for exceptions in (WRITES_A_STATUS, SLEEPS_OR_HANDLES_SIGNALS, READS_THE_ENVIRONMENT):
        assert not [name for name in exceptions if not (BASE / name).exists()]


# -- channels ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(settings.CHANNELS))
def test_a_channel_is_one_file_with_one_test_file(key):
    provider = provider_class(key)
    assert provider.key == key
    assert provider.__module__ == f"sessions_app.providers.{key}"
    assert (BASE / f"sessions_app/providers/{key}.py").exists()
    assert (BASE / f"tests/providers/test_{key}.py").exists()


def test_nothing_outside_a_channels_own_file_decides_by_its_name():
    for path in MODULES:
        compared = [node for node in ast.walk(tree(path)) if isinstance(node, (ast.Compare, ast.MatchValue))]
        literals = {one.value for node in compared for one in ast.walk(node) if isinstance(one, ast.Constant)}
        assert not literals & set(settings.CHANNELS), name_of(path)


def test_a_sessions_states_are_the_same_words_in_the_model_and_in_the_contract():
    assert {str(state) for state in SessionState} == set(Session.Status.values)


# -- sizes and numbers ---------------------------------------------------------------------------------------------------------


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_commands_translate_and_are_short():
    commands = [path for path in MODULES if path.parent.name == "commands" and path.stem != "__init__"]
    assert len(commands) >= 5
    assert not {name_of(path): lines(path) for path in commands if lines(path) > LONG_COMMANDS}


def test_files_stay_readable():
    assert not {name_of(path): lines(path) for path in MODULES if lines(path) > LONG_FILES}


def test_one_version():
    assert tomllib.loads((BASE / "pyproject.toml").read_text())["project"]["version"] == settings.VERSION


def test_our_session_is_never_mixed_up_with_djangos():
    for path in MODULES:
        names = used_names(tree(path))
        assert not ("sessions_app.models.Session" in names and any(name.startswith("django.contrib.sessions") for name in names)), name_of(
            path
        )
