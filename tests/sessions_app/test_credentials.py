"""Secrets at rest: who can open them, and how they move to a new key."""

import uuid
from io import StringIO
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command

from sessions_app.checking import check_session
from sessions_app.credentials import CredentialsUnreadable, reseal, seal, unseal
from sessions_app.models import Session
from sessions_app.providers.base import SessionState

OWNER = uuid.UUID("6f1f4b2c-1111-4222-8333-944455566677")
OLD, NEW, STRANGE = (Fernet.generate_key().decode() for _ in range(3))
SECRET = "clé-s3cr3t"


@pytest.fixture(autouse=True)
def _keys(settings: Any) -> None:
    settings.CREDENTIALS_KEYS = [OLD]


def rotate() -> str:
    out = StringIO()
    call_command("rotate_credentials", stdout=out)
    return out.getvalue().strip()


def make_session(name: str = "Sales", **credentials: str) -> Session:
    session = Session(name=name, channel="waha")
    session.credentials = credentials or {"api_key": SECRET}
    session.save()
    return session


def test_what_was_sealed_opens_again() -> None:
    sealed = seal(SECRET, owner=OWNER)
    assert unseal(sealed, owner=OWNER) == SECRET
    assert SECRET not in sealed
    assert sealed != seal(SECRET, owner=OWNER), "the same secret twice must not look the same"


def test_another_key_does_not_open_it(settings: Any) -> None:
    sealed = seal(SECRET, owner=OWNER)
    settings.CREDENTIALS_KEYS = [NEW]
    with pytest.raises(CredentialsUnreadable, match="no key in CREDENTIALS_KEYS"):
        unseal(sealed, owner=OWNER)


@pytest.mark.parametrize("sealed", ["", "nonsense", "gAAAAA", "é"])
def test_what_nobody_sealed_does_not_open(sealed: str) -> None:
    with pytest.raises(CredentialsUnreadable):
        unseal(sealed, owner=OWNER)


def test_it_does_not_open_for_another_owner() -> None:
    with pytest.raises(CredentialsUnreadable, match="another session"):
        unseal(seal(SECRET, owner=OWNER), owner=uuid.uuid4())


def test_a_key_added_in_front_seals_and_the_old_one_still_opens(settings: Any) -> None:
    before = seal(SECRET, owner=OWNER)
    settings.CREDENTIALS_KEYS = [NEW, OLD]
    after = seal(SECRET, owner=OWNER)
    assert unseal(before, owner=OWNER) == unseal(after, owner=OWNER) == unseal(reseal(before), owner=OWNER) == SECRET
    moved = reseal(before)
    settings.CREDENTIALS_KEYS = [NEW]
    assert unseal(moved, owner=OWNER) == SECRET
    with pytest.raises(CredentialsUnreadable):
        unseal(before, owner=OWNER)


@pytest.mark.django_db
def test_a_session_keeps_them_sealed() -> None:
    session = Session.objects.get(pk=make_session().pk)
    assert session.credentials == {"api_key": SECRET}
    assert SECRET not in str(list(Session.objects.values())) + repr(session) + repr(session.make_provider().config)
    session.credentials = {}
    assert session.sealed_credentials == ""
    assert session.credentials == {}


@pytest.mark.django_db
def test_credentials_copied_into_another_row_do_not_open_there() -> None:
    source, target = make_session("Sales"), make_session("Support", api_key="other")
    Session.objects.filter(pk=target.pk).update(sealed_credentials=source.sealed_credentials)
    target.refresh_from_db()
    with pytest.raises(CredentialsUnreadable, match="another session"):
        target.credentials  # noqa: B018


@pytest.mark.django_db
def test_a_session_whose_key_is_lost_is_disconnected_and_says_why(settings: Any) -> None:
    session = make_session()
    settings.CREDENTIALS_KEYS = [NEW]
    assert check_session(session).state == SessionState.DISCONNECTED
    assert "CREDENTIALS_KEYS" in session.status_detail


@pytest.mark.django_db
def test_rotation_moves_every_session_to_the_first_key(settings: Any) -> None:
    sessions = [make_session(f"Session {number}") for number in range(3)]
    Session.objects.create(name="Without", channel="mock")
    settings.CREDENTIALS_KEYS = [NEW, OLD]
    assert rotate() == "3 sessions sealed under the first key."
    assert rotate() == "3 sessions sealed under the first key.", "again does no harm"
    settings.CREDENTIALS_KEYS = [NEW]
    for session in sessions:
        updated_at = session.updated_at
        session.refresh_from_db()
        assert session.credentials == {"api_key": SECRET}
        assert session.updated_at == updated_at, "nothing was edited"


@pytest.mark.django_db
def test_rotation_names_what_it_cannot_open_and_does_the_rest(settings: Any) -> None:
    settings.CREDENTIALS_KEYS = [STRANGE]
    lost = make_session("Lost")
    settings.CREDENTIALS_KEYS = [OLD]
    good = make_session("Sales")
    before = lost.sealed_credentials
    settings.CREDENTIALS_KEYS = [NEW, OLD]
    with pytest.raises(CommandError, match="opens: Lost"):
        rotate()
    lost.refresh_from_db()
    good.refresh_from_db()
    assert lost.sealed_credentials == before
    settings.CREDENTIALS_KEYS = [NEW]
    assert good.credentials == {"api_key": SECRET}


@pytest.mark.django_db
def test_rotation_without_sessions() -> None:
    assert rotate() == "0 sessions sealed under the first key."
