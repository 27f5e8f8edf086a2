"""What `manage.py check --deploy` says about the jobs over HTTP and about who is told of trouble."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning

TAG = "paceline"
_NEW_TOKEN = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"  # noqa: S105  how to make one


def operations(**_kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if not settings.DEBUG and not settings.CAMPAIGN_RETRY_JOB_TOKEN:
        told = "CAMPAIGN_RETRY_JOB_TOKEN is empty: every call of /api/jobs/ is refused"
        found.append(Warning(told, hint=f"Set it: {_NEW_TOKEN}", id="dispatch.W001"))
    if not settings.DEBUG and not settings.HEALTHCHECK_TOKEN:
        told = "HEALTHCHECK_TOKEN is empty: the details of /api/health and /metrics are refused"
        found.append(Warning(told, hint=f"Set it: {_NEW_TOKEN}", id="dispatch.W002"))
    if settings.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN:
        told = "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN is on: the token stands in access logs"
        found.append(Warning(told, hint="Send the token in a header and set it to false, if the cron can.", id="dispatch.W003"))
    if not settings.ALERT_URLS and not settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL:
        told = "nobody is told of alerts: neither ALERT_URLS nor CAMPAIGN_RETRY_ALERT_WEBHOOK_URL is set"
        found.append(Warning(told, hint="Set one of them; until then alerts are in the log and the admin only.", id="dispatch.W004"))
    return found
