# make demo   everything with sample data, on http://127.0.0.1:8000/
# make run    the site, the scheduler and the background tasks, on the configured database
# make test   make lint
# make chaos  kill, freeze, restart and lie for some minutes, and count what arrived: make chaos [SEED=n] [SECONDS=150] [MESSAGES=2000]
# make reset  deletes the embedded database, keeps the keys in var/

PYTHON ?= python3
BIN := .venv/bin
MANAGE := $(BIN)/python manage.py
# Not its own .env: the settings read that file, with their own rules of quoting.
HONCHO := $(BIN)/python -m honcho --env /dev/null

export PYTHONUNBUFFERED := 1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo run test chaos lint reset bench

demo: .venv/.runtime
	$(MANAGE) migrate --verbosity 0
	$(MANAGE) demo_data
	@echo "Paceline: http://127.0.0.1:8000/  (Ctrl-C stops everything)"
	@exec $(HONCHO) start

run: .venv/.runtime
	$(MANAGE) migrate --verbosity 0
	$(MANAGE) collectstatic --noinput --verbosity 0
	@echo "Paceline: http://127.0.0.1:8000/  (Ctrl-C stops everything)"
	@exec $(HONCHO) start db web scheduler worker

test: .venv/.development
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile

# Bash counts in a variable of that name: only one that was given to make is meant.
SECONDS_OF_CHAOS := $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS))
chaos: .venv/.development
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(SECONDS_OF_CHAOS) $(if $(MESSAGES),--messages $(MESSAGES))

# A quarter of an hour: a scheduler at full rate with faults, a large ledger, a database that is away for a minute, a death at every single step.
bench: .venv/.development
	$(BIN)/python bench/soak.py
	$(BIN)/python bench/at_a_million.py
	PACELINE_OUTAGE_SECONDS=60 $(BIN)/python -m pytest tests/dispatch/test_postgres_restart.py -k away_for_longer
	PACELINE_CRASH_STRIDE=1 $(BIN)/python -m pytest tests/dispatch/test_crash_points.py -k loses_answers

lint: .venv/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy config sessions_app campaigns dispatch
	$(BIN)/lint-imports
	$(MANAGE) makemigrations --check --dry-run
	$(MANAGE) check --fail-level WARNING

reset: .venv/.runtime
	$(BIN)/python -m config.embedded_postgres reset

# The stamps say what is installed, so that a second `make` is quick.
.venv/.runtime: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Paceline needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 names another")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/.development: requirements-dev.txt .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@
