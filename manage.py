#!/usr/bin/env python
import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import InterfaceError, OperationalError, ProgrammingError

    # What an operator can mend is one sentence; anything else is a fault of ours and keeps its traceback.
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        refuse(str(error))
    except (OperationalError, InterfaceError) as error:
        refuse(f"the database cannot be reached: {first_line(error)}")
    except ProgrammingError as error:
        if "does not exist" not in str(error):
            raise
        refuse(f"the database is not up to date ({first_line(error)}): run manage.py migrate first")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def refuse(sentence: str) -> None:
    sys.stderr.write(f"paceline: {sentence}\n")
    sys.exit(1)


if __name__ == "__main__":
    main()
