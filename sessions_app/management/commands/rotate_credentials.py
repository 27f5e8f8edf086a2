from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from sessions_app.credentials import CredentialsUnreadable, reseal, unseal
from sessions_app.models import Session


class Command(BaseCommand):
    help = "Seal the credentials of every session again under the first key of CREDENTIALS_KEYS. May be run again at any time."

    def handle(self, *args: Any, **options: Any) -> None:
        sealed, unreadable = 0, []
        for pk in Session.objects.exclude(sealed_credentials="").order_by("pk").values_list("pk", flat=True):
            # row by row: stopped half-way, what is done stays done, and a form that saves meanwhile waits for one row at most
            with transaction.atomic():
                session = Session.objects.select_for_update().filter(pk=pk).first()
                if session is None or not session.sealed_credentials:
                    continue
                try:
                    unseal(session.sealed_credentials, owner=session.uuid)
                except CredentialsUnreadable:
                    unreadable.append(session.name)
                    continue
                Session.objects.filter(pk=pk).update(sealed_credentials=reseal(session.sealed_credentials))
                sealed += 1
        self.stdout.write(f"{sealed} session{'' if sealed == 1 else 's'} sealed under the first key.")
        if unreadable:
            names = ", ".join(unreadable)
            raise CommandError(f"No key of CREDENTIALS_KEYS opens: {names}. Put the old key back, or enter their credentials again.")
