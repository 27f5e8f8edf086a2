"""manage.py demo_data: what `make demo` shows. Run again, it changes nothing that is there."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from campaigns import demo


class Command(BaseCommand):
    help = "Make the sample data of `make demo`: a login, three sessions and two campaigns that start in a moment."

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("demo_data makes a login with a known password: it runs with DEBUG=true only.")
        demo.make()
        self.stdout.write(f"Login: {demo.LOGIN}  Password: {demo.PASSWORD}")
