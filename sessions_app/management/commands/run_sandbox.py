import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sessions_app.sandbox import Sandbox
from sessions_app.sandbox.state import ENGINES

STOP = {signal.SIGTERM, signal.SIGINT}


class Command(BaseCommand):
    help = "Run the local stand-in for WAHA: it accepts messages, reaches nobody, and lists what it got at /_sandbox/messages."
    requires_system_checks: list[str] = []  # it needs no database

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=3900, help="on 127.0.0.1 (default 3900; 0 takes a free one)")
        parser.add_argument("--api-key", default="", metavar="KEY", help="ask for this X-Api-Key (default: any caller may)")
        parser.add_argument("--engine", choices=ENGINES, default="NOWEB", help="answer in the shape of this engine (default NOWEB)")
        parser.add_argument("--only-created", action="store_true", help="sessions must be created and paired first; else every name works")
        parser.add_argument(
            "--auto-pair",
            type=float,
            metavar="SECONDS",
            help="pair a session so long after its QR code was first looked at (default: only at POST /_sandbox/sessions/NAME/scan)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["auto_pair"] is not None and not 0 <= options["auto_pair"] <= 3600:
            raise CommandError("--auto-pair is a number of seconds from 0 to 3600.")
        # Blocked and awaited instead of handled: nothing can be interrupted half-way. Before the threads start, which inherit the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        try:
            sandbox = Sandbox(
                port=options["port"],
                api_key=options["api_key"],
                engine=options["engine"],
                open_sessions=not options["only_created"],
                auto_pair=options["auto_pair"],
            )
        except (OSError, OverflowError) as error:
            raise CommandError(f"Port {options['port']} on 127.0.0.1 cannot be used: {error}. Choose another with --port.") from None
        with sandbox:
            self.stdout.write(f"Sandbox at {sandbox.url} ({options['engine']}). Ctrl-C stops it.")
            self.stdout.flush()
            signal.sigwait(STOP)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)  # a second one leaves at once
