"""What is asked over the network: the site itself, WAHA, and whether each session can send."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from django.conf import settings
from django.forms import ValidationError

from dispatch.providers import why_not
from dispatch.readiness.configuration import RESTART
from dispatch.readiness.findings import Check, Verdict, error, ok, warning
from dispatch.readiness.looking import JOB_PATH, LOOK_TAKES_AT_MOST, Look, Trouble, look_at_health, look_at_job, look_at_root
from sessions_app.checking import ask
from sessions_app.models import Session
from sessions_app.providers import http
from sessions_app.providers.base import Deadline, SessionCheck, SessionState
from sessions_app.providers.waha_connection import clean_base_url

SESSIONS_SHOWN = 10
ASKED_AT_ONCE = 8
REMEDIES = {
    Trouble.NOT_RUNNING: "systemctl start paceline-web; its log: journalctl -u paceline-web",
    Trouble.NO_ANSWER: "Check OPS_BASE_URL in .env, the name's DNS entry and the proxy. If the site hangs: systemctl restart paceline-web",
    Trouble.UNHEALTHY: "manage.py ops_healthcheck shows what is wrong; the other findings say how to mend it.",
    Trouble.DEGRADED: "manage.py ops_healthcheck shows what is wrong; the other findings say how to mend it.",
    Trouble.WRONG_TOKEN: f"Put one token into .env of both. {RESTART}",
    Trouble.CLOSED: f"Set the token in .env of the site. {RESTART}",
    Trouble.ELSEWHERE: "Set OPS_BASE_URL in .env to the address that visitors use.",
}


def site() -> Iterator[Verdict]:
    yield _verdict(look_at_root(settings.OPS_BASE_URL))


def health_url() -> Iterator[Verdict]:
    yield _verdict(look_at_health(settings.OPS_BASE_URL))


def retry_url() -> Iterator[Verdict]:
    yield _verdict(look_at_job(settings.CAMPAIGN_RETRY_JOB_URL or f"{settings.OPS_BASE_URL.rstrip('/')}{JOB_PATH}"))


def _verdict(look: Look) -> Verdict:
    sentence = f"{str(look)[:1].upper()}{str(look)[1:]}."
    if look.trouble is None:
        return ok(sentence)
    say = warning if look.trouble is Trouble.DEGRADED else error
    return say(sentence, REMEDIES[look.trouble])


def waha() -> Iterator[Verdict]:
    """The instance's own; the addresses of the sessions are asked with the sessions."""
    if not settings.WAHA_API_URL:
        yield ok("WAHA_API_URL is not set: each session names its own WAHA.")
        return
    try:
        url = clean_base_url(settings.WAHA_API_URL)
    except ValidationError as refusal:
        yield error(f"WAHA_API_URL is not usable. {refusal.messages[0]}", f"Correct it in .env. {RESTART}")
        return
    remedy = "Is WAHA running (docker compose ps), and can this machine reach it? Check WAHA_API_URL in .env."
    headers = {"X-Api-Key": settings.WAHA_API_KEY} if settings.WAHA_API_KEY else {}
    try:
        answer = http.get_json(f"{url}/api/sessions", headers=headers, deadline=Deadline(LOOK_TAKES_AT_MOST))
    except (http.NotSent, http.NoAnswer) as trouble:
        yield error(f"WAHA does not answer at {url}: {trouble}.", remedy)
        return
    if answer.status in {401, 403}:
        yield error(f"WAHA at {url} refuses WAHA_API_KEY ({answer.status}).", f"Set WAHA_API_KEY in .env to a key of that WAHA. {RESTART}")
    elif answer.status != 200 or not _is_json(answer):
        yield error(f"What answers at {url} is not WAHA ({answer.status}).", remedy)
    else:
        yield ok(f"WAHA answers at {url}.")


def _is_json(answer: http.Response) -> bool:
    try:
        answer.json()
    except ValueError:
        return False
    return True


def sessions() -> Iterator[Verdict]:
    """Asks every provider, and writes nothing down."""
    everyone = list(Session.objects.order_by("name"))
    answers = dict(zip([session.pk for session in everyone], _ask_all(everyone), strict=True))
    away = [session for session in everyone if answers[session.pk].state is not SessionState.CONNECTED]
    for session in away[:SESSIONS_SHOWN]:
        said = answers[session.pk]
        detail = f" {said.detail.rstrip('.')}." if said.detail else ""
        remedy = "Open the session in the admin, mend it, and choose Check connection."
        yield warning(f"Session {session} is not connected: {said.state.value.lower().replace('_', ' ')}.{detail}", remedy)
    for session in everyone:
        if session not in away and session.status != Session.Status.CONNECTED:
            sentence = f"Session {session} is connected, and is kept as {session.get_status_display().lower()}."
            yield warning(sentence, "Open the session in the admin and choose Check connection.")
    if len(away) == len(everyone):
        sentence = "No session is connected" if everyone else "There is no session"
        yield error(f"{sentence}: nothing can be sent.", "Add or connect one in the admin, under Sessions.")
    else:
        yield ok(f"{len(everyone) - len(away)} of {len(everyone)} sessions are connected.")


def _ask_all(everyone: list[Session]) -> list[SessionCheck]:
    """The calls in threads: each can take ten seconds."""
    troubles = {session.pk: why_not(session) for session in everyone}
    usable = [session for session in everyone if not troubles[session.pk]]
    with ThreadPoolExecutor(max_workers=ASKED_AT_ONCE) as pool:
        answers = dict(zip([session.pk for session in usable], pool.map(ask, [session.make_provider() for session in usable]), strict=True))
    return [answers.get(session.pk) or SessionCheck(SessionState.DISCONNECTED, troubles[session.pk]) for session in everyone]


CHECKS = [
    Check("site", site),
    Check("health-url", health_url),
    Check("retry-url", retry_url),
    Check("waha", waha),
    Check("sessions", sessions, needs_database=True),
]
