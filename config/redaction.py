"""What must not leave in a log or to an error tracker: the tokens that callers send."""

import logging
import re
from typing import Any

# By these names the tracker keeps what a request carried. A query string has nothing in it that explains an error.
_CARRIERS = {"query_string", "http.query", "authorization", "x-cron-token", "http_authorization", "http_x_cron_token"}
_TOKEN = re.compile(r"(?i)\btoken=[^&\s'\"]*")


def without_tokens(event: Any, hint: Any = None) -> Any:
    """For Sentry's before_send and before_send_transaction: the event without query strings, without the headers a token travels in,
    and without `token=...` in any text of it."""
    if isinstance(event, dict):
        return {name: without_tokens(value) for name, value in event.items() if str(name).lower() not in _CARRIERS}
    if isinstance(event, (list, tuple)):
        return [without_tokens(value) for value in event]
    return _TOKEN.sub("token=[removed]", event) if isinstance(event, str) else event


class NoTokens(logging.Filter):
    """For the log of the development server, which writes down the whole first line of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _TOKEN.sub("token=[removed]", record.getMessage()), ()
        return True
