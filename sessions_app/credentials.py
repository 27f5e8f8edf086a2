"""Secrets at rest: encrypted with the instance's own keys, bound to the session they belong to.

CREDENTIALS_KEYS holds one or more keys; the first seals, all of them open. To rotate: put a new key first, run
`manage.py rotate_credentials`, take the old one out.
"""

import json
import uuid

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class CredentialsUnreadable(Exception):
    """No key in CREDENTIALS_KEYS opens the value, or it was sealed for another session."""


def _keys() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in settings.CREDENTIALS_KEYS])


def seal(text: str, *, owner: uuid.UUID) -> str:
    """The owner is sealed in with the text, so that a value copied into another row does not open there."""
    return _keys().encrypt(json.dumps({"owner": str(owner), "text": text}).encode()).decode()


def unseal(sealed: str, *, owner: uuid.UUID) -> str:
    try:
        content = json.loads(_keys().decrypt(sealed.encode()))
    except InvalidToken:
        raise CredentialsUnreadable(
            "The credentials cannot be read: no key in CREDENTIALS_KEYS opens them. Put the old key back, or enter them again."
        ) from None
    if content["owner"] != str(owner):
        raise CredentialsUnreadable("The credentials were sealed for another session. Enter them again.")
    return content["text"]


def reseal(sealed: str) -> str:
    """The same secret under the first key."""
    return _keys().rotate(sealed.encode()).decode()
