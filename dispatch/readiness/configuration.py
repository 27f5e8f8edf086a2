"""What the settings say, before anything else is asked."""

import ipaddress
import logging
from collections.abc import Iterator
from urllib.parse import urlsplit

import apprise
from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core import checks
from django.core.checks.security.base import check_secret_key
from django.http.request import validate_host

from config.environment import unread_names
from dispatch.readiness.findings import Check, Verdict, error, ok, warning

EXAMPLES = 3
RESTART = "Then restart all services."
NEW_TOKEN = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"  # noqa: S105  how to make one
# What has a finding of its own here.
SAID_ELSEWHERE = ("dispatch.", "config.W001", "security.W009", "security.W018", "security.W020")


def is_local(host: str) -> bool:
    """By what is written, without asking a name server."""
    host = host.strip("[].").lower()
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _public_hosts() -> list[str]:
    return [host for host in settings.ALLOWED_HOSTS if not is_local(host)]


def unread_variables() -> Iterator[Verdict]:
    unread = unread_names(settings.ENV_FILE)
    for name, nearest in unread:
        remedy = f"Write it as {nearest} in .env." if nearest else "Take the line out of .env; .env.example lists what is read."
        yield warning(f"{name} in .env is read by nothing.", f"{remedy} {RESTART}")
    if not unread:
        yield ok("Every line of .env is read.")


def debug() -> Iterator[Verdict]:
    if not settings.DEBUG:
        yield ok("DEBUG is off.")
    elif public := _public_hosts():
        sentence = f"DEBUG is on and the site answers to {public[0]}: its error pages show the code to strangers."
        yield error(sentence, f"Set DEBUG=false in .env. {RESTART}")
    else:
        yield warning("DEBUG is on: this is a development instance.", f"In production set DEBUG=false in .env. {RESTART}")


def keys() -> Iterator[Verdict]:
    weak = check_secret_key(None)
    if weak:
        yield error(
            "SECRET_KEY is short or easily guessed.", f"Set SECRET_KEY in .env to a new one: {NEW_TOKEN.replace('32', '50')}. {RESTART}"
        )
    generated = [name for name in ("SECRET_KEY", "CREDENTIALS_KEYS") if _is_generated(name)]
    if generated and settings.DEBUG:
        sentence = f"{' and '.join(generated)}: generated into var/, which is for development."
        yield warning(sentence, "In production set them in .env, and keep a copy of CREDENTIALS_KEYS where the backups are not.")
    elif not weak:
        yield ok("SECRET_KEY and CREDENTIALS_KEYS are set.")


def _is_generated(name: str) -> bool:
    kept = settings.VAR / name.lower()
    value = getattr(settings, name)
    return kept.exists() and kept.read_text().strip() == (value if isinstance(value, str) else ",".join(value))


def hosts() -> Iterator[Verdict]:
    if "*" in settings.ALLOWED_HOSTS:
        yield warning("ALLOWED_HOSTS takes every host name.", f"Set it to the names of the site in .env. {RESTART}")
    elif not settings.DEBUG and not _public_hosts():
        sentence = "ALLOWED_HOSTS names this machine only: whoever comes through a proxy under another name is refused."
        yield warning(sentence, f"Add the site's name to ALLOWED_HOSTS in .env. {RESTART}")
    else:
        yield ok(f"The site answers to {', '.join(settings.ALLOWED_HOSTS)}.")


def base_url() -> Iterator[Verdict]:
    parts = urlsplit(settings.OPS_BASE_URL)
    host = parts.hostname or ""
    if not validate_host(f"[{host}]" if ":" in host else host, settings.ALLOWED_HOSTS):
        yield warning(
            f"OPS_BASE_URL leads to {host}, which is not in ALLOWED_HOSTS: the site will refuse it.",
            f"Set OPS_BASE_URL in .env to the address that visitors use, or add {host} to ALLOWED_HOSTS. {RESTART}",
        )
    elif parts.scheme != "https" and not settings.DEBUG and not is_local(host):
        sentence = "OPS_BASE_URL is not https, and its host is another machine: the tokens travel in the clear."
        yield warning(sentence, "Set OPS_BASE_URL in .env to the https address.")
    else:
        yield ok(f"OPS_BASE_URL leads to {host}.")


def recovery_policy() -> Iterator[Verdict]:
    if settings.RECOVERY_POLICY == "continue":
        sentence = "RECOVERY_POLICY=continue: after a crash, campaigns whose own message was not in doubt go on without a person."
        yield warning(sentence, f"If somebody should look first, set RECOVERY_POLICY=pause in .env. {RESTART}")
    else:
        yield ok("After a crash every running campaign is paused.")


def tokens() -> Iterator[Verdict]:
    job, health = settings.CAMPAIGN_RETRY_JOB_TOKEN, settings.HEALTHCHECK_TOKEN
    state = "is open to everybody while DEBUG is on" if settings.DEBUG else "is refused to everybody"
    remedy = f"Set it in .env: {NEW_TOKEN}. {RESTART}"
    if not job:
        yield warning(f"CAMPAIGN_RETRY_JOB_TOKEN is empty: what is under /api/jobs/ {state}.", remedy)
    if not health:
        yield warning(f"HEALTHCHECK_TOKEN is empty: what /api/health says in detail {state}.", remedy)
    if job and job == health:
        sentence = "CAMPAIGN_RETRY_JOB_TOKEN and HEALTHCHECK_TOKEN are the same: whoever may look may also set off work."
        yield warning(sentence, f"Give each its own in .env: {NEW_TOKEN}. {RESTART}")
    elif job and health:
        yield ok("Both tokens are set.")


def query_token() -> Iterator[Verdict]:
    if settings.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN:
        sentence = "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN is on: the token stands in the access log of every proxy."
        yield warning(sentence, f"If the cron can send a header, set it to false in .env and take a new token: {NEW_TOKEN}. {RESTART}")
    else:
        yield ok("The jobs' token is taken from a header only.")


def alerts() -> Iterator[Verdict]:
    channels = len(settings.ALERT_URLS) + bool(settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL)
    if not channels:
        yield warning("Nobody is told of alerts: they are in the log and the admin only.", f"Set ALERT_URLS in .env. {RESTART}")
        return
    logging.getLogger("apprise").propagate = False  # its lines quote what it cannot read
    for url in settings.ALERT_URLS:  # a URL of Apprise is full of secrets: its scheme is all that is shown
        if apprise.Apprise.instantiate(url, suppress_exceptions=True) is None:
            sentence = f"ALERT_URLS: the one that begins with {url.partition('://')[0]}:// is none that Apprise knows."
            yield error(sentence, f"Correct it in .env; https://github.com/caronc/apprise/wiki shows how each is written. {RESTART}")
            return
    yield ok(f"Alerts go to {channels} place{'' if channels == 1 else 's'}.")


def deploy_checks() -> Iterator[Verdict]:
    """Django's own, and with DEBUG on only those that hold on a development instance too."""
    found = checks.run_checks(include_deployment_checks=not settings.DEBUG)
    told = [message for message in found if message.level >= checks.WARNING and not message.is_silenced()]
    told = [message for message in told if not str(message.id).startswith(SAID_ELSEWHERE)]
    for message in told:
        say = error if message.level >= checks.ERROR else warning
        yield say(f"{message.id}: {message.msg}", f"{message.hint or ''} To see it again: manage.py check --deploy".strip())
    if not told:
        yield ok("Django's checks find nothing." if settings.DEBUG else "Django's deploy checks find nothing.")


def static_files() -> Iterator[Verdict]:
    if settings.DEBUG:
        yield ok("Static files are served from the code while DEBUG is on.")
        return
    remedy = "manage.py collectstatic --noinput, with DEBUG=false in .env. Then restart paceline-web."
    collected = getattr(staticfiles_storage, "hashed_files", {})
    if not collected:
        yield error("The static files were not collected: the admin has no style.", remedy)
        return
    wanted = {name.replace("\\", "/") for finder in get_finders() for name, _ in finder.list([])}
    missing = sorted(wanted - set(collected))
    if missing:
        some = ", ".join(missing[:EXAMPLES])
        were = "file was" if len(missing) == 1 else "files were"
        yield error(f"{len(missing)} static {were} not collected ({some}): pages that need what is missing fail.", remedy)
    else:
        yield ok(f"{len(collected)} static files are collected.")


def embedded_database() -> Iterator[Verdict]:
    if not is_embedded():
        yield ok("The database is a PostgreSQL of your own.")
    elif settings.DEBUG:
        yield ok("The embedded PostgreSQL is used, which is for development.")
    else:
        sentence = "DEBUG is off and the embedded PostgreSQL is used: it is made for development, and nobody backs it up."
        yield error(sentence, f"Set DATABASE_URL in .env, run manage.py migrate. {RESTART}")


def is_embedded() -> bool:
    return settings.DATABASES["default"]["ENGINE"] == "config.embedded_postgres"


CHECKS = [
    Check("unread-variables", unread_variables),
    Check("debug", debug),
    Check("keys", keys),
    Check("hosts", hosts),
    Check("base-url", base_url),
    Check("recovery-policy", recovery_policy),
    Check("tokens", tokens),
    Check("query-token", query_token),
    Check("alerts", alerts),
    Check("deploy-checks", deploy_checks),
    Check("static-files", static_files),
    Check("embedded-database", embedded_database),
]
