"""What the documents name exists: commands, targets, files, links, variables, numbers and tests."""

import ast
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import get_commands, load_command_class

from campaigns.transitions import ALLOWED, BY_HAND
from config.environment import VARIABLES
from dispatch.models import DispatchLog
from sessions_app import pacing
from sessions_app.providers.base import ErrorCode

ROOT = Path(settings.BASE_DIR)
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
UPPER_CASE_AND_NO_VARIABLE = {"CREATED", "READ", "SKIP_LOCKED"}


def page(name: str) -> str:
    return (ROOT / name).read_text()


def anchors(text: str) -> set[str]:
    """As GitHub makes them: lower case, punctuation dropped, blanks to hyphens."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


@every_page
def test_every_link_inside_the_project_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", path.read_text())
    broken = []
    for link in links:
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


@every_page
def test_every_command_is_there_with_its_options(path: Path) -> None:
    commands = get_commands()
    for line in re.findall(r"manage\.py ([a-z_]+[^`\n,.;:)]*)", path.read_text()):
        name, *words = line.split()
        assert name in commands, line
        app = commands[name]
        command = app if not isinstance(app, str) else load_command_class(app, name)
        options = {option for action in command.create_parser("manage.py", name)._actions for option in action.option_strings}
        assert {word for word in words if word.startswith("--")} <= options, line
        if name == "campaign" and words:
            assert words[0] in {"list", "show", *BY_HAND}, line


@every_page
def test_every_target_of_make_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", page("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", path.read_text(), re.MULTILINE))
    assert named <= targets


@every_page
def test_every_path_that_is_named_is_there(path: Path) -> None:
    """In code: a path with a slash, from the root of the project."""
    shown_only = {"sessions_app/providers/acme.py", "tests/providers/test_acme.py"}  # for the reader of providers.md to write
    roots = "|".join(
        folder.name for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(".") and folder.name != "var"
    )
    named = set(re.findall(rf"`((?:{roots})/[\w./*-]*)`", path.read_text())) - shown_only
    assert [name for name in named if not any(ROOT.glob(name.rstrip("/")))] == []


@every_page
def test_every_variable_is_read(path: Path) -> None:
    known = {*VARIABLES, *ErrorCode, *DispatchLog.Status, *vars(pacing), *vars(settings._wrapped)}
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)(?:=[^`]*)?`", path.read_text()))
    assert named - known - UPPER_CASE_AND_NO_VARIABLE == set()


def test_production_lists_every_variable_with_its_default() -> None:
    rows = re.findall(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \| (.*?) \|", page("docs/production.md"), re.MULTILINE)
    listed = {name: default for names, default in rows for name in re.findall(r"`([A-Z_]+)`", names)}
    assert listed.keys() == VARIABLES.keys()
    for name, (default, _) in VARIABLES.items():
        if default:
            assert listed[name] == f"`{default}`", name
        else:
            assert not listed[name].startswith("`"), name


def test_the_units_of_production_are_those_of_deploy() -> None:
    named = set(re.findall(r"^\| `(paceline-[a-z]+)` \|", page("docs/production.md"), re.MULTILINE))
    assert named == {unit.stem for unit in (ROOT / "deploy").rglob("*.service")}


def test_the_variables_of_a_text_in_the_readme_are_valid() -> None:
    from campaigns import rendering

    texts = re.findall(r"`(\{\{.*?\}\})`", page("README.md"))
    assert texts
    assert [problem for text in texts for problem in rendering.check(text)] == []


# -- pacing --------------------------------------------------------------------------------------------------------------------


def seconds(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else value


def test_the_numbers_of_the_pacing_page_are_those_of_the_code() -> None:
    named = dict(re.findall(r"`([A-Z_]+) = ([0-9.]+)(?: s)?`", page("docs/pacing.md")))
    constants = {
        name: seconds(value) for name, value in vars(pacing).items() if name.isupper() and isinstance(value, (int, float, timedelta))
    }
    assert {name: float(value) for name, value in named.items()} == constants


def test_the_defaults_of_the_pacing_page_are_those_of_a_campaign() -> None:
    from campaigns.models import Campaign

    campaign = Campaign()
    table = page("docs/pacing.md")
    for label, value in {
        "shortest interval": f"{campaign.min_interval} s",
        "longest interval": f"{campaign.max_interval} s",
        "batch size": str(campaign.batch_size),
        "pause after a batch": f"{campaign.batch_pause} s",
        "safe hours": f"{campaign.safe_from:%H:%M} to {campaign.safe_until:%H:%M}, {campaign.safe_hours.lower()}",
    }.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| {label} |"))
        assert row.split("|")[3].strip() == value


def test_the_table_of_a_day_is_what_its_script_prints() -> None:
    script = ROOT / "bench" / "day_of_one_number.py"
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    blocks = printed.split("\n\n")[1:]
    columns = [[f"{re.search(r'; ([0-9.]+) s from', block)[1]} s", *map(figures, block.splitlines()[1:])] for block in blocks]
    rows = page("docs/pacing.md").split("| defaults: 8 to 25 s")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[2:-1]] for row in rows]
    assert cells == [list(row) for row in zip(*columns, strict=True)]


def figures(line: str) -> str:
    found = re.search(r"([0-9.]+) +(\([0-9. to]+\))$", line)
    return f"{found[1]} {found[2]}" if found else "more than a day"


# -- states and tests ----------------------------------------------------------------------------------------------------------


def test_the_diagram_of_a_campaign_has_the_arrows_of_the_code() -> None:
    diagram = page("docs/architecture.md").split("### A campaign")[1].split("```")[1]
    drawn = set(re.findall(r"^\s+([A-Z]+) --> ([A-Z]+):", diagram, re.MULTILINE))
    assert drawn == {(str(origin), str(target)) for origins, target in ALLOWED.values() for origin in origins}


def test_the_diagram_of_a_message_names_every_state() -> None:
    diagram = page("docs/architecture.md").split("### A message")[1].split("```")[1]
    assert set(re.findall(r"\b[A-Z]{4,}\b", diagram)) == set(DispatchLog.Status)


def test_every_error_code_is_explained() -> None:
    part = page("docs/reliability.md").split("## What each error code does")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", part, re.MULTILINE)) == set(ErrorCode)


def names_in(file: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", page("docs/reliability.md"))
    assert named
    known = {file: names_in(ROOT / "tests" / file) for file, _ in named if (ROOT / "tests" / file).exists()}
    assert [f"{file}::{test}" for file, test in named if test not in known.get(file, ())] == []


def test_every_known_defect_has_its_row_with_a_test_or_a_reason() -> None:
    rows = re.findall(r"^\| ((?:L|DU|S|W)\d+) \|(.*)\|(.*)\|$", page("docs/reliability.md"), re.MULTILINE)
    expected = [*(f"L{n}" for n in range(1, 11)), *(f"DU{n}" for n in range(1, 8)), *(f"S{n}" for n in range(1, 16))]
    assert [label for label, _, _ in rows] == [*expected, *(f"W{n}" for n in range(1, 15))]
    assert [label for label, what, caught in rows if not what.strip() or not caught.strip()] == []


def test_the_images_are_small() -> None:
    images = list((ROOT / "docs" / "images").iterdir())
    assert images
    assert [image.name for image in images if image.stat().st_size > 300_000] == []
